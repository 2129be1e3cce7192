// Where things stand in the picture, in CSS pixels.
// Lives here: rows of streams, the panels of memory and of its addresses below them, and the axis. Does not live here: drawing.

const AXIS_HEIGHT = 24, TOP = 6, MEMORY_HEIGHT = 150, MAP_HEIGHT = 240, GAP = 26, RIGHT = 14;

class Layout {
  /** Streams that do nothing but wait have no row, but for compute. */
  constructor(run, width) {
    const rows = run.tracks.filter(track => track.count && (run.tracks.length < 3 || track.title.startsWith("compute")
      || track.end.some((end, i) => end > track.start[i])));
    const gpus = new Set(rows.map(track => track.gpu));
    const rowHeight = rows.length > 10 ? 20 : rows.length > 5 ? 26 : 34;
    this.width = width;
    this.left = width < 560 ? 66 : 104;
    this.right = width - RIGHT;
    let y = TOP, gpu = 0;
    this.rows = rows.map((track, i) => {
      if (i && track.gpu !== gpu) y += 8;
      gpu = track.gpu;
      const row = { track, y, height: rowHeight, title: gpus.size > 1 ? `${width < 560 ? "" : "GPU "}${track.gpu} ${track.title}` : track.title };
      y += rowHeight;
      return row;
    });
    this.rowsEnd = y;
    this.memoryTop = y + GAP;
    this.memoryEnd = this.memoryTop + MEMORY_HEIGHT;
    this.mapTop = this.memoryEnd + GAP;
    this.mapEnd = this.mapTop + MAP_HEIGHT;
    this.hasMap = run.maps.length > 0;
    this.bottom = this.hasMap ? this.mapEnd : this.memoryEnd;
    this.height = this.bottom + AXIS_HEIGHT;
  }

  x(view, time) { return this.left + (time - view.start) / view.length * (this.right - this.left); }

  time(view, x) { return view.start + (x - this.left) / (this.right - this.left) * view.length; }

  get perPixel() { return 1 / (this.right - this.left); }

  rowAt(y) { return this.rows.find(row => y >= row.y && y < row.y + row.height); }
}
