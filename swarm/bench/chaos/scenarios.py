"""The scenarios of `swarm chaos`, by name.

Each says what happens to a reply and how long the reply may stand still for it. Whatever happens,
its tokens are those of the undisturbed one; that is checked for all alike.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarm.bench.chaos import acts, outages
from swarm.bench.chaos.scenario_run import Act, ScenarioRun
from swarm.errors import UsageError
from swarm.network.memory import LinkConditions

LONG_PROMPT_TOKENS, FEW_TOKENS = 1500, 20
MANY_TOKENS = 500  # so many that a reply does not end by itself before it can move
DAEMON_RESTART_S = 5.0  # p2pd takes half a second to start, a second on a busy machine

Run = Callable[[ScenarioRun], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name, one line about it, and what it does."""

    name: str
    summary: str
    run: Run


def _loses_hop(act: Act, *, found_by_lease: bool = False, more_s: float = 0.0) -> Run:
    """The reply goes on elsewhere: at once after a broken stream, after a lease of silence else."""

    async def lose(run: ScenarioRun) -> None:
        await run.ask_during(act)
        run.require(run.losses > 0, "no loss was noticed")
        lease_s = run.harness.config.lease_s if found_by_lease else 0.0
        run.require_stall_below(lease_s + max(1.0, 2 * run.replay_s) + more_s)

    return lose


async def _undisturbed(run: ScenarioRun) -> None:
    await run.ask()
    run.require(run.losses == 0, "a hop was lost though nothing happened")


async def _loses_hop_in_prompt(run: ScenarioRun) -> None:
    questions = run.questions(LONG_PROMPT_TOKENS, FEW_TOKENS)
    await run.ask_during(acts.kill(), questions, at_token=0)
    run.require(run.losses > 0, "no loss was noticed")
    run.require_stall_below(max(1.0, 2 * run.replay_s))


async def _loses_two(run: ScenarioRun) -> None:
    await run.harness.add_peer(run.harness.config.spans[1])  # so that a third can take over
    await run.ask_during(acts.kill_with_replacement)
    run.require(run.losses > 1, "only one loss was noticed")
    run.require_stall_below(2 * max(1.0, 2 * run.replay_s))


async def _leaves_slow_peer(run: ScenarioRun) -> None:
    await run.ask_during(acts.slow_down)
    [slow] = run.disturbed
    for reply in run.seen:
        late = [gap for gap in reply.gaps_s[-20:] if gap > acts.SLOW_DELAY_S]
        run.require(not late, f"{slow.name} was slow and was kept to the end")
        silent = [resume for resume in reply.resumes if resume.kind == "silent"]
        run.require(not silent, f"{slow.name} was slow and was taken for dead")


async def _moves_without_stall(run: ScenarioRun) -> None:
    replies = await run.ask_during(acts.leave, run.questions(max_tokens=MANY_TOKENS))
    usual_s = max(reply.median_s for reply in replies)
    run.require(run.recoveries > 0, "no reply moved before the hop was gone")
    run.require_stall_below(max(2 * usual_s, run.noise_s))


_HOLE, _STALL, _CUT = LinkConditions(blackhole=True), LinkConditions(stalled=True), LinkConditions(cut=True)

SCENARIOS = (
    Scenario("undisturbed", "Nothing happens: the control for all others.", _undisturbed),
    Scenario("kill", "SIGKILL of a hop in mid-reply.", _loses_hop(acts.kill())),
    Scenario("kill-first", "SIGKILL of the first hop.", _loses_hop(acts.kill(acts.first))),
    Scenario("kill-last", "SIGKILL of the last hop.", _loses_hop(acts.kill(acts.last))),
    Scenario("kill-all-hops", "SIGKILL of all hops at once.", _loses_hop(acts.kill(acts.every))),
    Scenario(
        "kill-during-prefill", "SIGKILL of a hop while a long prompt goes through.", _loses_hop_in_prompt
    ),
    Scenario("kill-replacement", "SIGKILL of a hop, then of the peer that took over.", _loses_two),
    Scenario("other-cuts", "A lost span is covered by two peers with other cuts.", outages.other_cuts),
    Scenario("outage", "All replicas of a span die; one comes back.", outages.outage),
    Scenario(
        "local-fallback",
        "All replicas of a span die; the client runs its blocks itself.",
        outages.local_fallback,
    ),
    Scenario("freeze", "A hop's machine sleeps: silence.", _loses_hop(acts.freeze(), found_by_lease=True)),
    Scenario(
        "blackhole-to",
        "Nothing reaches a hop any more.",
        _loses_hop(acts.set_link(to_peer=_HOLE), found_by_lease=True),
    ),
    Scenario(
        "blackhole-from",
        "Nothing comes from a hop any more.",
        _loses_hop(acts.set_link(from_peer=_HOLE), found_by_lease=True),
    ),
    Scenario(
        "stall",
        "The link to a hop takes bytes and does not deliver them.",
        _loses_hop(acts.set_link(_STALL, _STALL), found_by_lease=True),
    ),
    Scenario("cut", "The link to a hop breaks.", _loses_hop(acts.set_link(_CUT, _CUT))),
    Scenario("slow-peer", "The link to a hop becomes slow; the reply moves.", _leaves_slow_peer),
    Scenario(
        "p2pd-local",
        "The client's own network daemon dies.",
        _loses_hop(acts.kill_own_p2pd, more_s=DAEMON_RESTART_S),
    ),
    Scenario("p2pd-remote", "A hop's network daemon dies, its program lives.", _loses_hop(acts.kill_p2pd())),
    Scenario("python-remote", "A hop's program dies, its network daemon lives.", _loses_hop(acts.orphan())),
    Scenario("leave", "A hop is told to leave: nobody notices.", _moves_without_stall),
    Scenario("spare-promotion", "SIGKILL of a hop that has a warm spare.", outages.promote_spare),
    Scenario("sleep-wake", "A hop sleeps, is replaced, and wakes.", outages.sleep_and_wake),
    Scenario("client-sleep", "The client sleeps in mid-reply.", outages.client_sleeps),
    Scenario("client-crash-resume", "A chat is killed in mid-reply and resumed.", outages.client_crashes),
    Scenario("rejoin", "A peer is killed and restarted five times.", outages.rejoin),
    Scenario("bootstrap-down", "The bootstrap is gone for two minutes.", outages.bootstrap_down),
    Scenario("all-sleep", "All peers sleep for 90 s.", outages.all_sleep),
)


def choose(names: tuple[str, ...]) -> list[Scenario]:
    """The scenarios of these names, or all. Raises `UsageError`."""
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"There is no scenario {name!r}", "Run swarm chaos --list.")
    return [by_name[name] for name in names or by_name]
