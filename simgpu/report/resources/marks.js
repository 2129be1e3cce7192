// What lies over the picture: hits of a search, the pinned span and what it waits for, the line under the pointer.
// Lives here: painting marks. Does not live here: the picture below, which need not be painted again for them.

class Marks {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  /** state: layout, view, theme, ratio, hits, current, pinned, waited, hover {x, track, i}. */
  paint(state) {
    const { context } = this, { layout, ratio } = state;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, layout.width, layout.height);
    context.save();
    context.beginPath();
    context.rect(layout.left - 2, 0, layout.right - layout.left + 4, layout.height);
    context.clip();
    if (state.hits.length) this.paintHits(state);
    if (state.waited) this.frame(state, state.waited, state.theme.mark, 1.5, [4, 3]);
    if (state.pinned) this.frame(state, state.pinned, state.theme.text, 2, []);
    if (state.hover) this.paintHover(state);
    if (state.stretch) this.paintStretch(state);
    context.restore();
  }

  boxOf({ layout, view }, { track, i }) {
    const row = layout.rows.find(each => each.track === track);
    if (!row || track.end[i] < view.start || track.start[i] > view.end) return null;
    const x = Math.max(layout.left - 4, layout.x(view, track.start[i]));
    const end = Math.min(layout.right + 4, layout.x(view, track.end[i]));
    return { x, y: row.y, width: Math.max(end - x, 1), height: row.height };
  }

  frame(state, span, colour, width, dash) {
    const box = this.boxOf(state, span);
    if (!box) return;
    this.context.strokeStyle = colour;
    this.context.lineWidth = width;
    this.context.setLineDash(dash);
    this.context.strokeRect(box.x - 1, box.y + 0.5, Math.max(box.width + 1, 4), box.height - 1);
    this.context.setLineDash([]);
  }

  /** A line below each hit, at most one a pixel and row; all else is dimmed. */
  paintHits(state) {
    const { context } = this, { layout, theme } = state, seen = new Set();
    const boxes = [];
    for (const hit of state.hits) {
      const box = this.boxOf(state, hit);
      if (!box) continue;
      const place = `${box.y}:${Math.round(box.x)}:${Math.round(box.width)}`;
      if (!seen.has(place)) { seen.add(place); boxes.push(box); }
    }
    context.fillStyle = theme.shade;
    context.beginPath();
    context.rect(layout.left, TOP, layout.right - layout.left, layout.rowsEnd - TOP);
    for (const box of boxes) {  // the other way round, so that hits stay clear
      const wide = Math.max(3, box.width);
      context.moveTo(box.x, box.y); context.lineTo(box.x, box.y + box.height);
      context.lineTo(box.x + wide, box.y + box.height); context.lineTo(box.x + wide, box.y); context.closePath();
    }
    context.fill("nonzero");
    context.fillStyle = theme.mark;
    for (const box of boxes) context.fillRect(box.x, box.y + box.height - 3, Math.max(3, box.width), 3);
    if (state.current) this.frame(state, state.current, theme.mark, 2.5, []);
  }

  paintHover({ hover, layout, view, theme, ratio }) {
    const { context } = this;
    context.fillStyle = theme.text;
    context.globalAlpha = 0.45;
    context.fillRect(hover.x, TOP, 1 / ratio, layout.memoryEnd - TOP);
    context.globalAlpha = 1;
    if (hover.track) this.frame({ layout, view }, hover, theme.text, 1.5, []);
  }

  paintStretch({ stretch, layout, theme }) {
    const { context } = this, [from, to] = stretch;
    context.fillStyle = theme.live;
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(from, to), TOP, Math.abs(to - from), layout.memoryEnd - TOP);
    context.globalAlpha = 1;
  }
}
