// The picture and its state: which run is seen, which stretch of it, what is marked.
// Lives here: painting at the right moment and size, and looking up what is at a place. Does not live here: how anything
// is painted, or what moves the view (pointer.js, keys.js).

class Stage {
  constructor(page, home, said) {
    this.page = page;
    this.home = home;
    this.said = said;
    this.canvas = home.querySelector("#picture");
    this.context = this.canvas.getContext("2d");
    this.marks = new Marks(home.querySelector("#marks"));
    this.view = new View(() => this.paint());
    Object.assign(this, { hits: [], current: null, pinned: null, waited: null, hover: null, stretch: null, frame: 0 });
    new ResizeObserver(() => this.resize()).observe(home);
    for (const query of ["(prefers-color-scheme: dark)", `(resolution: ${devicePixelRatio}dppx)`])
      matchMedia(query).addEventListener("change", () => this.resize());
  }

  /** Shows a run; iteration null is all of it. */
  open(run, iteration) {
    this.run = run;
    this.letGo();
    this.hits = [];
    this.current = this.hover = null;
    const [start, end] = run.window(iteration);
    this.origin = start;
    this.view.scope = [start, end];
    this.view.start = start;
    this.view.end = end;
    this.scale = memoryScale(run, [start, end]);
    this.resize();
  }

  resize() {
    if (!this.run || !this.home.clientWidth) return;
    this.ratio = devicePixelRatio || 1;
    this.layout = new Layout(this.run, this.home.clientWidth);
    for (const canvas of [this.canvas, this.marks.canvas]) {
      canvas.width = Math.round(this.layout.width * this.ratio);
      canvas.height = Math.round(this.layout.height * this.ratio);
      canvas.style.height = `${this.layout.height}px`;
    }
    this.theme = new Theme(this.page.looks, this.context, this.ratio);
    this.paintNow();
  }

  /** Once before the next frame, however often it is asked for. */
  paint() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const began = performance.now(), { context, layout, view, theme, run } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, layout.width, layout.height);
    for (const row of layout.rows) paintGround(context, row, layout, theme);
    paintMemoryAxis(context, layout, theme, this.scale, run);
    paintAxis(context, layout, view, theme, this.origin);
    for (const row of layout.rows) paintRow(context, row, layout, view, theme, (track, i) => labelOf(run, track, i));
    paintMemory(context, run, layout, view, theme, this.scale);
    const map = run.maps[this.scale.first];
    if (map) {
      paintMapAxis(context, run, layout, theme, map);
      paintMap(context, run, layout, view, theme, map, this.page.data.map_colours);
    }
    paintEnds(context, layout, view, theme, run.ends);
    this.paintMarks();
    performance.clearMeasures("simgpu: paint");
    performance.measure("simgpu: paint", { start: began, end: performance.now() });
    this.home.dataset.start = view.start;
    this.home.dataset.end = view.end;
    this.said();
  }

  paintMarks() { this.marks.paint(this); }

  /** The span at a place; of several in one pixel the longest. */
  at(x, y) {
    const row = this.layout.rowAt(y);
    if (!row || x < this.layout.left || x > this.layout.right) return null;
    const { track } = row, pixel = this.view.length * this.layout.perPixel, time = this.layout.time(this.view, x);
    const [first, last] = track.within(time - 1.5 * pixel, time + 1.5 * pixel);
    let best = -1;
    for (let i = first; i < Math.min(last, first + 2000); i++) {
      const length = track.end[i] - track.start[i];
      if (!length) continue;
      if (length >= pixel && track.start[i] <= time && track.end[i] > time) return { track, i };
      if (best < 0 || length > track.end[best] - track.start[best]) best = i;
    }
    return best < 0 ? null : { track, i: best };
  }

  pin(span) {
    this.pinned = span;
    this.waited = span && this.waitedFor(span);
    this.paintMarks();
  }

  letGo() { this.pinned = this.waited = null; }

  /** The work whose end ended a wait. */
  waitedFor({ track, i }) {
    if (track.cause[i] < 0 || track.name[i] < 0) return null;
    const other = this.run.tracks.find(each => each.stream === track.cause[i]);
    if (!other) return null;
    const after = firstAbove(other.end, track.end[i]);
    for (let k = after - 1; k >= 0 && k > after - 50; k--)
      if (other.name[k] === track.name[i] && other.kind[k] < 6) return { track: other, i: k };
    return null;
  }

  goTo(span) {
    this.view.reveal(span.track.start[span.i], span.track.end[span.i]);
    this.pin(span);
    this.said(true);
  }
}
