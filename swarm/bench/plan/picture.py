"""The split as a picture: a bar for each machine, as long as its blocks."""

from html import escape

from swarm.bench.plan.advice import PlanAnswer

WIDTH, ROW = 720, 34
LABEL = 160


def picture(answered: PlanAnswer) -> str:
    """An SVG. The names come from the person's own file."""
    parts = answered.prediction.parts if answered.prediction else ()
    blocks = answered.question.config.num_blocks
    scale = (WIDTH - LABEL) / blocks
    rows = []
    for index, part in enumerate(parts):
        top = index * ROW
        left, width = LABEL + part.span.start * scale, len(part.span) * scale
        rows.append(f'<text x="4" y="{top + 20}">{escape(part.machine.name)}</text>')
        rows.append(f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="24" fill="#1f6feb"/>')
        rows.append(f'<text x="{left + 6:.1f}" y="{top + 20}" fill="#fff">{part.span}</text>')
    said = (
        f"{answered.prediction.tokens_per_s:.1f} tokens/s, held back by {answered.bottleneck}"
        if answered.prediction
        else "It does not fit."
    )
    height = len(parts) * ROW + 28
    rows.append(f'<text x="4" y="{height - 8}">{escape(said)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">{"".join(rows)}</svg>\n'
    )
