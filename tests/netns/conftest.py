"""Hosts for a test, taken down after it."""

import pytest
from hosts import Hosts, why_not


@pytest.fixture
def hosts():
    if reason := why_not(routers=True):
        pytest.skip(reason)
    hosts = Hosts()
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()
