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

  /** Stretches of pixels with hits on each row; worked out again only when the view or the hits have changed. */
  stretches({ hits, layout, view }) {
    const key = [hits, layout, view.start, view.end];
    if (this.key && key.every((part, i) => part === this.key[i])) return this.found;
    this.key = key;
    return this.found = layout.rows.map(row => {
      const merged = [];
      for (const { track, i } of hits.byTrack.get(row.track) || []) {
        if (track.end[i] < view.start) continue;
        if (track.start[i] > view.end) break;
        const from = Math.max(layout.left, layout.x(view, track.start[i]));
        const to = Math.min(layout.right, Math.max(from + 3, layout.x(view, track.end[i])));
        const last = merged[merged.length - 1];
        if (last && from <= last[1]) last[1] = Math.max(last[1], to); else merged.push([from, to]);
      }
      return merged;
    });
  }

  /** A line below each hit; what is beside hits is dimmed. */
  paintHits(state) {
    const { context } = this, { layout, theme } = state;
    this.stretches(state).forEach((merged, number) => {
      const { y, height } = layout.rows[number];
      let clear = layout.left;
      for (const [from, to] of [...merged, [layout.right, layout.right]]) {
        context.fillStyle = theme.shade;
        context.fillRect(clear, y, from - clear, height);
        context.fillStyle = theme.mark;
        context.fillRect(from, y + height - 3, to - from, 3);
        clear = to;
      }
    });
    if (state.current) this.frame(state, state.current, theme.mark, 2.5, []);
  }

  paintHover({ hover, layout, view, theme, ratio }) {
    const { context } = this;
    context.fillStyle = theme.text;
    context.globalAlpha = 0.45;
    context.fillRect(hover.x, TOP, 1 / ratio, layout.bottom - TOP);
    context.globalAlpha = 1;
    if (hover.track) this.frame({ layout, view }, hover, theme.text, 1.5, []);
  }

  paintStretch({ stretch, layout, theme }) {
    const { context } = this, [from, to] = stretch;
    context.fillStyle = theme.live;
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(from, to), TOP, Math.abs(to - from), layout.bottom - TOP);
    context.globalAlpha = 1;
  }
}
