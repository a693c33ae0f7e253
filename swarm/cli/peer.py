"""`swarm peer`: host blocks of a model for others."""

from typing import TYPE_CHECKING

import click

from swarm.cli.fetching import MANIFEST_HELP, find_model
from swarm.cli.network_options import NetworkOptions, network_options
from swarm.cli.output import note, print_json, print_result, progress, when_long
from swarm.cli.params import DURATION, SIZE
from swarm.cli.runtime import run_service
from swarm.cli.supervisor import notify
from swarm.config import find_paths
from swarm.errors import UsageError
from swarm.values import Span, parse_span

if TYPE_CHECKING:
    from swarm.model.linear.layouts import Quantization
    from swarm.network.transport import Reach
    from swarm.peer.announcer import Profile
    from swarm.peer.placement.choice import Role
    from swarm.peer.throughput import Throughput


@click.command("peer")
@click.argument("model")
@click.option(
    "--blocks",
    default="auto",
    metavar="A:B|auto",
    help="Blocks to host; auto takes those that fit and help most. Blocks that are given stay.",
)
@click.option(
    "--move/--no-move", "may_move", default=True, help="With auto: later host others where that helps more."
)
@click.option("--manifest", metavar="FILE|DIGEST", help=MANIFEST_HELP)
@network_options(role="peer")
@click.option("--memory", type=SIZE, help="Memory to use, for example 6GiB. [default: 80% of what is free]")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Compute in it. [default: as stored]"
)
@click.option(
    "--quantization",
    type=click.Choice(["none", "int8", "int4"]),
    default="none",
    show_default=True,
    help="Keep the weights in fewer bits, made while loading.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads to compute with. [default: measured]")
@click.option("--name", "public_name", default="", help="A name to show on status pages. None by default.")
@click.option(
    "--monitor", type=click.IntRange(0, 65535), default=0, help="Port of /metrics on loopback; 0 is any."
)
@click.option(
    "--drain", "drain_s", type=DURATION, default="30s", help="How long to let sessions move on leaving."
)
@click.option("--until-eof", is_flag=True, help="Also leave when standard input ends.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
def command(
    model: str,
    blocks: str,
    manifest: str | None,
    may_move: bool,
    network: NetworkOptions,
    memory: int | None,
    dtype: str | None,
    quantization: "Quantization",
    threads: int | None,
    public_name: str,
    monitor: int,
    drain_s: float,
    until_eof: bool,
    as_json: bool,
) -> None:
    """Host blocks of MODEL (a cached name or a directory) for others.

    Of a model of the Hugging Face hub (ORG/NAME) that is here in part, or not at all if --manifest is given,
    only the files that hold its blocks are fetched.

    Without --join it starts a swarm of its own, which others join through the address it prints.
    The first Ctrl-C lets its sessions move to other peers and leaves; the second stops at once.
    """
    from swarm.peer.program import PeerConfig, PeerEvents, run_peer
    from swarm.wire.records import MAX_NAME_CHARS

    if len(public_name) > MAX_NAME_CHARS:
        raise UsageError(f"--name has {len(public_name)} characters", f"Use at most {MAX_NAME_CHARS}.")
    paths = find_paths()
    span = None if blocks == "auto" else parse_span(blocks)
    directory = find_model(model, [] if manifest is None else [manifest], network.join)
    with network.claim() as (identity, node), progress(unit_is_bytes=True) as show:
        config = PeerConfig(
            model=model,
            directory=directory,
            store_root=paths.store_root,
            network=node,
            span=span,
            may_move=may_move,
            memory_bytes=memory,
            dtype=dtype,
            quantization=quantization,
            threads=threads,
            public_name=public_name,
            monitor_port=monitor,
            drain_s=drain_s,
        )
        teller = _JsonTeller(identity.peer_id) if as_json else _Teller()

        def on_loading(span: Span, done: int, total: int) -> None:
            show(f"Loading blocks {span}", done, total)

        def on_joined(addresses: tuple[str, ...], monitor_port: int) -> None:
            notify("READY=1")
            teller.joined(addresses, monitor_port)

        events = PeerEvents(
            on_joined=on_joined,
            on_fetching=when_long(show),
            on_loading=on_loading,
            on_online=teller.online,
            on_leaving=teller.leaving,
            on_moving=teller.moving,
            on_role=teller.role,
            on_reach=teller.reach,
        )
        run_service(lambda stop: run_peer(config, identity, events, stop), until_eof=until_eof)


class _Teller:
    """Tells a person."""

    def joined(self, addresses: tuple[str, ...], monitor_port: int) -> None:
        note(f"Metrics: http://127.0.0.1:{monitor_port}/metrics")

    def online(self, profile: "Profile", throughput: "Throughput") -> None:
        print_result(
            f"Online: blocks {profile.span} of {profile.model_name} in {_numbers(profile)}, "
            f"{throughput.decode_tokens_per_s:.1f} tokens/s on {throughput.threads} thread(s). Ctrl-C leaves."
        )

    def reach(self, reach: "Reach", addresses: tuple[str, ...], why: str) -> None:
        if reach == "no":
            note(f"{why} Until then it is not online; it looks again now and then.")
            return
        if reach == "relayed":
            note(
                "Nobody can dial this peer, so a relay passes its bytes on; a forwarded port would be faster."
            )
        for address in addresses:
            print_result(f"Others join with: --join {address}")

    def moving(self, old: Span, new: Span) -> None:
        print_result(
            f"Moving from blocks {old} to {new}, where it is needed more. Its sessions go elsewhere."
        )

    def role(self, role: "Role", why: str) -> None:
        note(f"A spare: {why}" if role == "spare" else "Clients use this peer again.")

    def leaving(self, within_s: float) -> None:
        note(f"Leaving: sessions have {within_s:.0f} s to move. Ctrl-C again stops at once.")


def _numbers(profile: "Profile") -> str:
    """What a peer computes in, in words."""
    quantized = "" if profile.quantization == "none" else f", weights in {profile.quantization}"
    return f"{profile.dtype}{quantized}"


class _JsonTeller:
    """Tells a script: one JSON object a line."""

    def __init__(self, peer_id: str) -> None:
        self._peer_id = peer_id

    def joined(self, addresses: tuple[str, ...], monitor_port: int) -> None:
        monitor = f"http://127.0.0.1:{monitor_port}"
        print_json({"event": "joined", "peer": self._peer_id, "join": list(addresses), "monitor": monitor})

    def online(self, profile: "Profile", throughput: "Throughput") -> None:
        print_json(
            {
                "event": "online",
                "peer": self._peer_id,
                "model": profile.model_name,
                "manifest": profile.manifest,
                "blocks": str(profile.span),
                "dtype": profile.dtype,
                "quantization": profile.quantization,
                "kernels": profile.kernels,
                "threads": throughput.threads,
                "decode_tokens_per_s": throughput.decode_tokens_per_s,
                "prefill_tokens_per_s": throughput.prefill_tokens_per_s,
            }
        )

    def reach(self, reach: "Reach", addresses: tuple[str, ...], why: str) -> None:
        print_json(
            {"event": "reach", "peer": self._peer_id, "reach": reach, "join": list(addresses), "why": why}
        )

    def moving(self, old: Span, new: Span) -> None:
        print_json({"event": "moving", "peer": self._peer_id, "from": str(old), "to": str(new)})

    def role(self, role: "Role", why: str) -> None:
        print_json({"event": "role", "peer": self._peer_id, "role": role, "why": why})

    def leaving(self, within_s: float) -> None:
        print_json({"event": "leaving", "peer": self._peer_id, "within_s": within_s})
