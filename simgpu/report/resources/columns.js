// What the page carries, as columns to look things up in: the other side of simgpu/report/columns.py.
// Lives here: undoing its short forms, and searching sorted columns. Does not live here: anything that is drawn.


/** The first position in a sorted column at which its value is not below `value`. */
function firstAtLeast(column, value) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

/** The first position in a sorted column at which its value is above `value`. */
function firstAbove(column, value) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

/** Sums of the steps so far: whole numbers up to 2**53 stay exact in 64-bit floats. */
function summed(steps) {
  const values = new Float64Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i++) values[i] = sum += steps[i];
  return values;
}

/** One stream of a run: spans in order of time, none of which overlap. */
class Track {
  constructor(data) {
    const count = data.gap.length;
    this.stream = data.stream;
    this.gpu = data.gpu;
    this.title = data.title;
    this.count = count;
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    let now = 0;
    for (let i = 0; i < count; i++) {
      this.start[i] = now += data.gap[i];
      this.end[i] = now += data.length[i];
    }
    this.kind = Uint8Array.from(data.kind);
    this.look = Uint8Array.from(data.look);
    this.name = Int32Array.from(data.name);
    this.cause = Int16Array.from(data.cause);
    this.iteration = Uint32Array.from(summed(data.iteration));
    this.bytes = new Float64Array(count);
    summed(data.moved.at).forEach((at, i) => { this.bytes[at] = data.moved.bytes[i]; });
    this.looks = [...new Set(this.look)].sort((a, b) => a - b);
    this.sums = new Map();
  }

  /** Time that spans of a look took before each span, for sums over any stretch. */
  sumsOf(look) {
    if (!this.sums.has(look)) {
      const sums = new Float64Array(this.count + 1);
      for (let i = 0; i < this.count; i++)
        sums[i + 1] = sums[i] + (this.look[i] === look ? this.end[i] - this.start[i] : 0);
      this.sums.set(look, sums);
    }
    return this.sums.get(look);
  }

  /** Positions [first, last) of the spans that touch a stretch of time. */
  within(from, to) {
    return [firstAbove(this.end, from), firstAtLeast(this.start, to)];
  }
}

/** Memory in use as a step function, of a GPU or the host. reserved: of PyTorch's allocator, null for others. */
class Curve {
  constructor(data) {
    this.title = data.title;
    this.capacity = data.capacity;
    this.time = summed(data.time);
    this.live = summed(data.live);
    this.used = data.padding ? summed(data.padding).map((pad, i) => pad + this.live[i]) : this.live;
    this.padded = data.padding !== null;
    this.reserved = data.reserved ? summed(data.reserved) : null;
  }

  /** The position that holds at a time, -1 before the first. */
  at(time) { return firstAbove(this.time, time) - 1; }

  peak(from, to) {
    let best = Math.max(0, this.at(from));
    for (let i = best; i < this.time.length && this.time[i] < to; i++)
      if (this.live[i] > this.live[best]) best = i;
    return best;
  }
}

/** Kernels and blocks by what spans call them. */
class Tasks {
  constructor(data) {
    this.kernels = data.kernels;
    this.blocks = data.blocks;
    this.kernelOf = new Map(data.kernels.id.map((name, i) => [name, i]));
    this.blockOf = new Map(data.blocks.id.map((name, i) => [name, i]));
  }
}

/** One policy's run. */
class Run {
  constructor(data, page) {
    Object.assign(this, { label: data.label, ends: data.ends, budget: data.budget, unlimited: data.unlimited });
    this.words = page.words;
    this.kinds = page.kinds;
    this.streams = data.streams;
    this.tracks = data.tracks.map(track => new Track(track));
    this.memory = data.memory.map(curve => new Curve(curve));
    this.shared = data.shared.map(curve => new Curve(curve));
    this.maps = (data.maps || []).map(map => new SegmentMap(map));
    this.tasks = page.tasksOf(data.tasks);
    const last = this.tracks.map(track => track.count ? track.end[track.count - 1] : 0);
    this.end = Math.max(1, ...this.ends, ...last);
  }

  /** Start and end of an iteration, or of all that happened for null. */
  window(iteration) {
    if (iteration === null) return [0, this.end];
    const start = iteration ? this.ends[iteration - 1] : 0;
    return [start, Math.max(start + 1, this.ends[iteration])];
  }
}

/** The data of the page; runs are read when they are first looked at. */
class Page {
  constructor(text) {
    const data = JSON.parse(text);
    this.words = data.words;
    this.kinds = data.kinds;
    this.looks = data.looks;
    this.data = data;
    this.runs = new Map();
    this.tasks = new Map();
  }

  tasksOf(number) {
    if (!this.tasks.has(number)) this.tasks.set(number, new Tasks(this.data.tasks[number]));
    return this.tasks.get(number);
  }

  run(number) {
    if (!this.runs.has(number)) this.runs.set(number, new Run(this.data.runs[number], this));
    return this.runs.get(number);
  }
}
