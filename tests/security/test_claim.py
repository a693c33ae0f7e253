"""One identity, one running node."""

import pytest

from swarm.errors import ConfigurationError
from swarm.security.claim import claim_identity


def test_two_nodes_of_one_user_get_two_identities_and_a_restarted_one_its_own(tmp_path):
    default = tmp_path / "identities" / "peer.key"
    with claim_identity(None, default) as first, claim_identity(None, default) as second:
        assert (first.path.name, second.path.name) == ("peer.key", "peer-2.key")
        assert first.identity.peer_id != second.identity.peer_id
    with claim_identity(None, default) as again:
        assert again.identity.peer_id == first.identity.peer_id


def test_an_identity_asked_for_is_refused_while_a_node_uses_it(tmp_path):
    path = tmp_path / "own.key"
    with (
        claim_identity(path, path),
        pytest.raises(ConfigurationError, match="used by a node that runs"),
        claim_identity(path, path),
    ):
        pass
