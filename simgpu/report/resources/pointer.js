// The mouse, the pen and the finger: zoom, move, hover, pin.
// Lives here: turning their events into moves of the view. Does not live here: keys (keys.js).

/** pinned: called when a click has pinned a span, or let it go. */
function followPointer(stage, tip, pinned) {
  const { canvas } = stage;
  let drag = null;
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("wheel", event => {
    const [x] = place(event), { view } = stage;
    const scale = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.move((event.deltaX || event.deltaY) * scale / 1000);
    } else if (event.deltaY < 0 || !view.fits) {  // where there is nothing left to zoom out of, the page scrolls
      event.preventDefault();
      view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * scale / 400))), stage.layout.time(view, x));
      hover(event);
    }
  }, { passive: false });

  canvas.addEventListener("pointerdown", event => {
    if (event.button) return;
    const [x] = place(event);
    drag = { x, moved: false, start: stage.view.start, end: stage.view.end, zooms: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (!drag) return hover(event);
    const [x] = place(event);
    if (Math.abs(x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    leave();
    if (drag.zooms) {
      stage.stretch = [drag.x, x];
      stage.paintMarks();
    } else {
      canvas.classList.add("dragging");
      const shift = (drag.x - x) * stage.layout.perPixel * (drag.end - drag.start);
      stage.view.show(drag.start + shift, drag.end + shift);
    }
  });
  const release = event => {
    if (!drag) return;
    const [x, y] = place(event), { moved, zooms } = drag, from = drag.x;
    drag = null;
    stage.stretch = null;
    canvas.classList.remove("dragging");
    if (event.type !== "pointerup") stage.paintMarks();
    else if (!moved) pinned(stage.at(x, y));
    else if (zooms) {
      const times = [from, x].map(each => stage.layout.time(stage.view, each)).sort((a, b) => a - b);
      stage.view.show(...times);
    }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", () => stage.view.fit());
  canvas.addEventListener("pointerleave", leave);

  function leave() {
    tip.hidden = true;
    if (!stage.hover) return;
    stage.hover = null;
    stage.paintMarks();
  }

  function hover(event) {
    const [x, y] = place(event), { layout, view, run } = stage;
    if (x < layout.left || x > layout.right || y > layout.bottom) return leave();
    const span = stage.at(x, y);
    stage.hover = { x, ...span };
    stage.paintMarks();
    const time = layout.time(view, x), unit = unitFor(Math.max(1, view.end - stage.origin));
    const map = run.maps[stage.scale.first];
    const facts = span ? factsOf(run, span.track, span.i, stage.origin)
      : map && y > layout.mapTop ? mapFacts(run, map, layout, time, y, stage.origin, unit)
      : y > layout.memoryTop ? memoryFacts(run, time, stage.origin, unit) : null;
    tip.hidden = !facts;
    if (!facts) return;
    showFacts(tip, facts);
    const left = x + 16 + tip.offsetWidth < layout.width ? x + 16 : Math.max(4, x - 16 - tip.offsetWidth);
    const top = Math.max(4, Math.min(y + 14, layout.height - tip.offsetHeight - 4));
    Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
  }
}
