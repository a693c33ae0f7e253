"""What strangers wrote runs in a process of its own, which is ended at its limits and never left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from swarm.errors import BrokenModel, ConfigurationError, RequestError
from swarm.model.confined import Confined, ProcessLimits

LIMITS = ProcessLimits(cpu_s=1, memory_bytes=2**28, wall_s=60.0, answer_bytes=2**20)
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True, "variables": {}}
HELLO = "{{ messages[0].content }}"


def template(source: str, limits: ProcessLimits = LIMITS) -> Confined:
    return Confined("The model's chat template", "template", {"source": source}, limits)


def pid_of(confined: Confined) -> int:
    """The one child process that we have now and had not before it was asked."""
    before = {child.pid for child in psutil.Process().children()}
    confined.ask(QUESTION)
    [pid] = {child.pid for child in psutil.Process().children()} - before
    return pid


HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 10**(10**8) }}",
    "{% set ns = namespace(n=10**8) %}{{ 10**ns.n }}",
    "{{ 'a'*10**9 }}",
    "{% set ns = namespace(s='a') %}{{ ns.s*10**9 }}",
    "{{ lipsum(n=100000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a' | center(10**10) }}",
    "{{ [0] * 10**9 }}",
    "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{{ 'x' * 2000000 }}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: source[:40])
def test_a_template_that_takes_all_there_is_is_ended(source):
    with pytest.raises(RequestError, match=r"template was ended.* 1 s of computing or 256 MiB of memory"):
        template(source).ask(QUESTION)


@pytest.mark.parametrize(
    "source", ["{{ (" * 3000 + "1" + ") }}" * 3000, "{% if 1 %}" * 5000 + "{% endif %}" * 5000]
)
def test_a_template_that_is_too_deep_to_be_read_is_refused(source):
    with pytest.raises((RequestError, BrokenModel), match="chat template"):
        template(source).ask(QUESTION)


def test_after_an_end_the_next_question_is_answered():
    confined = template("{% if messages[0].content == 'loop' %}{{ 10**(10**messages[1].n) }}{% endif %}done")
    loop = QUESTION | {"messages": [{"role": "user", "content": "loop"}, {"role": "user", "n": 8}]}
    with pytest.raises(RequestError, match="was ended"):
        confined.ask(loop)
    assert confined.ask(QUESTION) == "done"


def test_computing_time_is_counted_for_each_question():
    confined = template("{% for i in range(20000) %}{% endfor %}done")
    assert {confined.ask(QUESTION) for _ in range(50)} == {"done"}


def test_a_process_that_was_ended_from_outside_is_replaced():
    confined = template(HELLO)
    first = pid_of(confined)
    os.kill(first, signal.SIGKILL)
    psutil.Process(first).wait()
    assert confined.ask(QUESTION) == "hi"


def test_a_process_that_stands_still_is_given_up():
    confined = template(HELLO, ProcessLimits(cpu_s=1, memory_bytes=2**28, wall_s=1.0, answer_bytes=2**20))
    os.kill(pid_of(confined), signal.SIGSTOP)
    with pytest.raises(RequestError, match="was ended"):
        confined.ask(QUESTION)


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a limit of another process be lifted")
def test_memory_is_watched_where_the_system_does_not_limit_it():
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    taking = (
        HELLO
        + "{% set taken = 'a' * (messages[0].n or 0) %}"
        + "{% if messages[0].n %}"
        + loop
        + "{% endif %}"
    )
    confined = template(taking, ProcessLimits(cpu_s=60, memory_bytes=2**27, wall_s=100.0, answer_bytes=2**20))
    process = psutil.Process(pid_of(confined))
    _, most = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    with pytest.raises(RequestError, match="was ended"):
        confined.ask(QUESTION | {"messages": [{"role": "user", "content": "hi", "n": 2**28}]})
    assert not process.is_running()


def test_after_an_interrupt_no_question_gets_the_answer_of_another(monkeypatch):
    confined = template(HELLO)
    pid_of(confined)

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("swarm.model.confined._Process.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            confined.ask(QUESTION)
    assert confined.ask(QUESTION | {"messages": [{"role": "user", "content": "other"}]}) == "other"


def test_many_threads_ask_one_process():
    confined = template(HELLO)
    asked = [QUESTION | {"messages": [{"role": "user", "content": str(n)}]} for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(confined.ask, asked)) == [str(n) for n in range(40)]


def test_the_process_ends_with_its_owner():
    confined = template(HELLO)
    process = psutil.Process(pid_of(confined))
    del confined
    assert not process.is_running()


OWNER = """
    import sys, threading
    from swarm.model.confined import Confined, ProcessLimits
    question = {"messages": [{"role": "user", "content": ""}], "add_generation_prompt": True, "variables": {}}
    source = "{% if messages[0].content %}{{ 10**(10**messages[0].n) }}{% endif %}"
    confined = Confined("It", "template", {"source": source}, ProcessLimits(2, 2**28, 60.0, 2**20))
    confined.ask(question)
    print("asked", flush=True)
    if sys.argv[1] == "busy":
        question["messages"][0] |= {"content": "loop", "n": 8}
        confined.ask(question)
    threading.Event().wait()
"""


@pytest.mark.parametrize("doing", ["idle", "busy"])
def test_the_process_ends_when_its_owner_is_killed(doing):
    code = textwrap.dedent(OWNER)
    owner = subprocess.Popen([sys.executable, "-c", code, doing], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout.readline() == "asked\n"
        [confined] = psutil.Process(owner.pid).children()
        owner.kill()
    confined.wait(timeout=100)


def test_an_interrupt_is_not_for_the_process():
    confined = template(HELLO)
    assert os.getpgid(pid_of(confined)) != os.getpgid(0)


def test_it_sees_no_secret_of_its_owner(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "HF_TOKEN" not in psutil.Process(pid_of(template(HELLO))).environ()


def test_a_process_that_cannot_be_started_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigurationError, match="which cannot be started"):
        template(HELLO).ask(QUESTION)
