"""Random training iterations with realistic structure: backward reads the tensors that forward saves.

They contain the operators that make recomputation hard: batch norms with saved and running statistics, dropouts with
and without a mask, changes in place, poolings with indices, workspaces, branches, weights that are updated during
backward, and kernels of unknown purity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from simgpu.trace.check import check_trace
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace
from tests.semantics.hand_made import INFO

OPERATORS = (
    *("conv", "conv", "relu_", "batch_norm", "pool"),
    *("relu", "dropout", "dropout_", "maskless", "add_", "concat", "unknown", "split", "scale"),
)
TIMES = st.one_of(st.integers(0, 3), st.integers(0, 30), st.integers(0, 300))
SIZES = st.one_of(st.integers(0, 3), st.integers(0, 40), st.integers(1, 300), st.integers(100, 300))


@dataclass
class Tape:
    """Kernels and blocks so far; pending backward kernels are in the order of forward."""

    draw: st.DrawFn
    kernels: list[Kernel] = field(default_factory=list)
    blocks: dict[str, Block] = field(default_factory=dict)
    backward: list[Callable[[], None]] = field(default_factory=list)
    gradients: set[str] = field(default_factory=set)
    phase: Phase = Phase.FORWARD
    layer: str | None = None
    tagged: bool = True
    updates: str = "none"

    def block(self, name: str, kind: BlockKind = BlockKind.ACTIVATION, **more: object) -> str:
        self.blocks[name] = Block(name, self.draw(SIZES), kind, **more)  # type: ignore[arg-type]
        return name

    def run(self, op: str, reads: tuple[str, ...], writes: tuple[str, ...], pure: bool | None = True) -> None:
        name = f"{self.phase.value[0]}{len(self.kernels)}"
        layer = self.layer if self.tagged else None
        self.kernels.append(Kernel(name, op, self.phase, self.draw(TIMES), reads, writes, layer, pure=pure))

    def gradient(self, x: str, *reads: str, op: str = "backward") -> None:
        """Add to the gradient of x, in place if it exists already."""
        name = f"g.{x}"
        if name not in self.gradients:
            self.gradients.add(name)
            self.block(name, BlockKind.GRADIENT)
            self.run(op, tuple(dict.fromkeys(reads)), (name,))
        else:
            self.run(op, tuple(dict.fromkeys((*reads, name))), (name,))

    def incoming(self, y: str) -> tuple[str, ...]:
        return (f"g.{y}",) if f"g.{y}" in self.gradients else ()

    def later(self, what: Callable[[], None]) -> None:
        layer = self.layer

        def there() -> None:
            self.layer = layer
            what()

        self.backward.append(there)


def _forward(tape: Tape, op: str, n: int, x: str, other: str) -> str:
    """One operator; returns its output, which is x if it works in place."""
    y = f"y{n}"
    if op in ("conv", "scale"):
        w = tape.block(f"w{n}", BlockKind.WEIGHT, persistent=True)
        built = [tape.block(y)]
        if op == "conv" and tape.draw(st.booleans()):
            built.append(tape.block(f"ws{n}", BlockKind.WORKSPACE))
        tape.run("conv2d", (x, w), tuple(built))
        tape.later(lambda: _weight_gradient(tape, n, x, w, y))
        return y
    if op == "batch_norm":
        running = tape.block(f"run{n}", BlockKind.OTHER, persistent=True)
        w = tape.block(f"w{n}", BlockKind.WEIGHT, persistent=True)
        saved = tape.block(f"save{n}", BlockKind.OTHER)
        tape.run("batch_norm", (x, w, running), (tape.block(y), saved, running), pure=False)
        tape.later(lambda: tape.gradient(x, x, w, saved, *tape.incoming(y)))
        return y
    if op in ("dropout", "dropout_"):
        mask = tape.block(f"mask{n}", BlockKind.OTHER)
        result = x if op == "dropout_" else tape.block(y)
        tape.run(op, (x,), (result, mask), pure=False)
        tape.later(lambda: tape.gradient(x, mask, *tape.incoming(result)))
        return result
    if op in ("maskless", "unknown"):
        tape.run("dropout" if op == "maskless" else "mine", (x,), (tape.block(y),), False if op == "maskless" else None)
        tape.later(lambda: tape.gradient(x, y, *tape.incoming(y)))
        return y
    if op == "pool":
        indices = tape.block(f"at{n}", BlockKind.OTHER)
        tape.run("max_pool2d_with_indices", (x,), (tape.block(y), indices))
        tape.later(lambda: tape.gradient(x, indices, *tape.incoming(y)))
        return y
    if op == "split":
        half = tape.block(f"half{n}")
        tape.run("chunk", (x,), (tape.block(y), half))
        tape.run("relu_", (half,), (half,))
        tape.later(lambda: tape.gradient(x, half, y, *tape.incoming(y)))
        return y
    if op in ("relu_", "add_"):
        reads = (x,) if op == "relu_" or other == x else (x, other)
        tape.run(op, reads, (x,))
        tape.later(lambda: tape.gradient(reads[-1], x, *tape.incoming(x)))
        return x
    reads = tuple(dict.fromkeys((x, other))) if op == "concat" else (x,)
    tape.run("cat" if op == "concat" else "relu", reads, (tape.block(y),))
    for r in reads:
        tape.later(lambda r=r: tape.gradient(r, y, *tape.incoming(y)))
    return y


def _weight_gradient(tape: Tape, n: int, x: str, w: str, y: str) -> None:
    dw = tape.block(f"dw{n}", BlockKind.WEIGHT_GRADIENT)
    space = [tape.block(f"wsb{n}", BlockKind.WORKSPACE)] if tape.draw(st.booleans()) else []
    tape.run("backward", tuple(dict.fromkeys((x, *tape.incoming(y)))), (dw, *space))
    tape.gradient(x, w, *tape.incoming(y))
    if tape.updates == "in backward":
        tape.run("sgd", (dw, w), (w,), pure=False)


@st.composite
def trainings(draw: st.DrawFn, max_layers: int = 9) -> Trace:
    """A checked trace of one iteration of training."""
    tape = Tape(draw, tagged=draw(st.sampled_from([True, True, True, False])))
    tape.updates = draw(st.sampled_from(["none", "in backward", "at the end"]))
    tape.block("x0", BlockKind.INPUT, persistent=True)
    there, x = ["x0"], "x0"
    together = draw(st.sampled_from([1, 1, 2, 3]))
    for n in range(draw(st.integers(2, max_layers))):
        tape.layer = f"L{n // together}"
        other = draw(st.sampled_from(there))
        source = x if draw(st.integers(0, 3)) else draw(st.sampled_from(there))
        x = _forward(tape, draw(st.sampled_from(OPERATORS)), n, source, other)
        there.append(x)
    _end(tape, x, there)
    blocks = tuple(_with_life(draw, tape, block) for block in tape.blocks.values())
    trace = Trace(INFO, tuple(tape.kernels), blocks)
    assert not check_trace(trace), [str(problem) for problem in check_trace(trace)]
    return trace


def _end(tape: Tape, x: str, there: list[str]) -> None:
    """The loss, with labels that the host may initialize late, then backward and an optimizer."""
    tape.layer = "loss"
    tape.block("labels", BlockKind.LABEL, persistent=True)
    tape.run("nll_loss", (x, "labels"), (tape.block("loss"),))
    tape.phase = Phase.BACKWARD
    tape.gradient(x, "loss", "labels")
    for make in reversed(tape.backward):
        make()
        if tape.draw(st.integers(0, 15)) == 0:
            # A kernel overwrites a feature map's memory.
            tape.run("reuse", (), (tape.draw(st.sampled_from([name for name in there if name != "x0"] or ["loss"])),))
    if tape.updates == "at the end":
        tape.phase = Phase.OPTIMIZER
        weights = [name for name in tape.blocks if name.startswith("w") and f"d{name}" in tape.blocks]
        for w in weights:
            tape.layer = "step"
            tape.run("sgd", (f"d{w}", w), (w,), pure=False)


def _with_life(draw: st.DrawFn, tape: Tape, block: Block) -> Block:
    """The block with a recorded release; host inputs may be initialized late or released during the iteration."""
    uses = [index for index, kernel in enumerate(tape.kernels) if block.id in kernel.reads + kernel.writes]
    given = block.kind in (BlockKind.INPUT, BlockKind.LABEL)
    if given and uses and draw(st.booleans()):
        if draw(st.booleans()):
            return replace(block, persistent=False, host_write=tape.kernels[draw(st.integers(0, uses[0]))].id)
        return replace(block, release=tape.kernels[draw(st.integers(uses[-1], len(tape.kernels) - 1))].id)
    if block.persistent or not uses or block.kind is BlockKind.WORKSPACE:
        return block
    late = tape.kernels[draw(st.integers(uses[-1], len(tape.kernels) - 1))].id
    return replace(block, release=draw(st.sampled_from([None, None, RELEASED_AT_END, late])))
