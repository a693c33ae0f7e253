"""Who is asked which layout and kernels a weight gets.

`PlainChooser` measures nothing. `MeasuringChooser` measures once and remembers in a file, by processor,
build of torch, number of threads, shape and form, so that all processes of one machine compute alike:
the file decides, not the noise of each start.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from swarm.errors import ConfigurationError
from swarm.model.dtypes import dtype_name
from swarm.model.files import locked, writing_to
from swarm.model.linear.choice import (
    LAYOUTS,
    ROW_CLASSES,
    Form,
    KernelChoice,
    Shape,
    candidates,
    form_of,
    known_kernels,
    matters,
    measure_choice,
    plain_choice,
)
from swarm.model.linear.machine import build, processor
from swarm.security.foreign import read_bounded

_FILE = "kernels.json"
_MOST_BYTES = 2**22
_decoder = msgspec.json.Decoder(dict[str, KernelChoice])

Measure = Callable[[Shape, Form], KernelChoice]

_log = logging.getLogger(__name__)


class Chooser(Protocol):
    """Says what several weights get."""

    def choose(self, shapes: Iterable[Shape], form: Form) -> dict[Shape, KernelChoice]: ...


class PlainChooser:
    """The layouts that every build of torch has."""

    def choose(self, shapes: Iterable[Shape], form: Form) -> dict[Shape, KernelChoice]:
        """The same for all."""
        return {shape: plain_choice(form_of(shape, form)) for shape in shapes}


class MeasuringChooser:
    """Measures what no process of this machine has measured before. `folder` is where that is kept."""

    def __init__(self, folder: Path, measure: Measure = measure_choice) -> None:
        self._file = folder / _FILE
        self._measure = measure

    def choose(self, shapes: Iterable[Shape], form: Form) -> dict[Shape, KernelChoice]:
        """What was measured, now or before; plain kernels where that cannot be kept.

        Processes that start at the same time measure one after the other, and then what none has yet.
        """
        shapes = list(shapes)
        plain = PlainChooser().choose(shapes, form)
        measured = {shape: form_of(shape, form) for shape in shapes if matters(shape)}
        try:
            return plain | self._known_or_measured(measured)
        except ConfigurationError as error:
            _log.warning("Kernels are not chosen by measuring, because the result cannot be kept: %s", error)
            return plain

    def _known_or_measured(self, wanted: Mapping[Shape, Form]) -> dict[Shape, KernelChoice]:
        known = self.known()
        if not all(_is_known(known, shape, form) for shape, form in wanted.items()):
            with locked(
                self._file.with_suffix(".lock"), lambda: _log.info("Another process measures kernels")
            ):
                known = self.known()
                for shape, form in wanted.items():
                    if not _is_known(known, shape, form):
                        known[_key(shape, form)] = self._measure(shape, form)
                self._write(known)
        return {shape: known[_key(shape, form)] for shape, form in wanted.items()}

    def known(self) -> dict[str, KernelChoice]:
        """What is remembered; nothing when the file is missing or damaged, and then it is measured anew."""
        try:
            return _decoder.decode(read_bounded(self._file, _MOST_BYTES))
        except (OSError, ValueError):  # msgspec's errors are ValueErrors
            return {}

    def _write(self, choices: dict[str, KernelChoice]) -> None:
        unfinished = self._file.with_suffix(f".{os.getpid()}")
        with writing_to(self._file):
            unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(choices)) + b"\n")
            unfinished.replace(self._file)


def known_choices(folder: Path) -> dict[str, KernelChoice]:
    """What was measured on this machine with this build of torch, by threads, format and shape."""
    own = f"{processor()} | torch {build()} | "
    known = MeasuringChooser(folder).known()
    told = {key.removeprefix(own): choice for key, choice in known.items() if key.startswith(own)}
    return {key.rpartition(" | ")[0]: choice for key, choice in told.items()}


def _key(shape: Shape, form: Form) -> str:
    kind = dtype_name(form.dtype) + ("" if form.quantization == "none" else f"+{form.quantization}")
    legible = " legible" if form.legible else ""
    measured = f"threads {torch.get_num_threads()} | {kind} {shape}{legible} | of {known_kernels(form)}"
    return f"{processor()} | torch {build()} | {measured}"


def _is_known(known: Mapping[str, KernelChoice], shape: Shape, form: Form) -> bool:
    """Whether there is a choice that can be used: another version may have known other kernels."""
    choice = known.get(_key(shape, form))
    layout = LAYOUTS.get(choice.layout) if choice else None
    if choice is None or layout is None or layout not in candidates(form):
        return False
    names = {kernel.name for kernel in layout.kernels}
    return len(choice.kernels) == len(ROW_CLASSES) and names.issuperset(choice.kernels)
