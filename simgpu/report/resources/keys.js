// The keyboard on the picture: everything that the pointer does.
// Lives here: what each key does. Does not live here: moves themselves (view.js).

/** pinned: called with the span to pin, or null. find: puts the cursor into the search box. step: to another hit. */
function followKeys(stage, { pinned, find, step }) {
  const { view } = stage, middle = () => (view.start + view.end) / 2;
  const keys = {
    w: () => view.zoom(0.7, middle()), "+": () => view.zoom(0.7, middle()), "=": () => view.zoom(0.7, middle()),
    s: () => view.zoom(1 / 0.7, middle()), "-": () => view.zoom(1 / 0.7, middle()),
    a: () => view.move(-0.2), ArrowLeft: () => view.move(-0.2),
    d: () => view.move(0.2), ArrowRight: () => view.move(0.2),
    0: () => view.fit(), f: () => view.fit(), Home: () => view.fit(),
    ",": () => along(-1), ".": () => along(1), ArrowUp: () => across(-1), ArrowDown: () => across(1),
    "/": find, n: () => step(1), N: () => step(-1), Escape: () => pinned(null),
  };

  /** The span before or after the pinned one on its stream; at first the one in the middle of the first row. */
  function along(way) {
    if (!stage.pinned) return choose(stage.layout.rows[0].track, middle());
    const { track } = stage.pinned;
    let i = stage.pinned.i + way;
    while (i >= 0 && i < track.count && track.end[i] === track.start[i]) i += way;
    if (i >= 0 && i < track.count && track.end[i] > view.scope[0] && track.start[i] < view.scope[1]) see({ track, i });
  }

  function across(way) {
    const { rows } = stage.layout, at = stage.pinned ? rows.findIndex(row => row.track === stage.pinned.track) : -1;
    const row = rows[Math.max(0, Math.min(rows.length - 1, at + way))];
    choose(row.track, stage.pinned ? (stage.pinned.track.start[stage.pinned.i] + stage.pinned.track.end[stage.pinned.i]) / 2 : middle());
  }

  function choose(track, time) {
    if (track.count) see({ track, i: Math.min(track.count - 1, firstAbove(track.end, time)) });
  }

  function see(span) {
    pinned(span);
    const start = span.track.start[span.i], end = span.track.end[span.i];
    if (start < view.start || end > view.end) view.show(start - 0.1 * view.length, start + 0.9 * view.length);
  }

  stage.canvas.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
}
