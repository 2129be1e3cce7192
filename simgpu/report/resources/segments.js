// The segment map: which tensor is at which address of a GPU's memory, over time, on the axis of the streams.
// Lives here: its rectangles, painting them, and facts of what is at a place. Does not live here: their choice
// (simgpu/report/segment_map.py).

/** Rectangles by their begin: from `start` to `end`, `bytes` from the place `low` on; gaps between segments are left out. */
class Rectangles {
  constructor(data) {
    this.start = summed(data.start);
    this.end = Float64Array.from(data.length, (length, i) => this.start[i] + length);
    this.low = Float64Array.from(data.low);
    this.bytes = Float64Array.from(data.bytes);
    this.block = data.block ? Int32Array.from(data.block) : null;
    this.count = data.start.length;
  }

  /** The rectangle at a time and a place, -1 for none. */
  at(time, place) {
    for (let i = firstAbove(this.start, time) - 1; i >= 0; i--)
      if (this.end[i] > time && this.low[i] <= place && place < this.low[i] + this.bytes[i]) return i;
    return -1;
  }

  /** Calls paint(i, x, y, width, height) for what is seen; heights from the bottom of the panel up. */
  each(layout, view, scale, paint) {
    const from = layout.left, to = layout.right;
    for (let i = 0; i < this.count && this.start[i] < view.end; i++) {
      if (this.end[i] <= view.start) continue;
      const x = Math.max(from, layout.x(view, this.start[i])), end = Math.min(to, layout.x(view, this.end[i]));
      const height = this.bytes[i] * scale;
      paint(i, x, layout.mapEnd - this.low[i] * scale - height, end - x, height);
    }
  }
}

/** What one GPU's allocator did with its memory. total: bytes of all addresses that ever had memory. */
class SegmentMap {
  constructor(data) {
    this.total = Math.max(1, data.total);
    this.omitted = data.omitted;
    this.segments = new Rectangles(data.segments);
    this.blocks = new Rectangles(data.blocks);
  }
}

/** What a block holds: of kernels' tensors, empty if it is not known. */
function heldBy(run, map, i) {
  const block = map.blocks.block[i];
  return block < 0 ? "" : word(run, run.tasks.blocks.kind[block]);
}

function paintMap(context, run, layout, view, theme, map, colours) {
  const height = layout.mapEnd - layout.mapTop, scale = height / map.total, { blocks } = map;
  context.fillStyle = theme.free;
  map.segments.each(layout, view, scale, (i, x, y, w, h) => context.fillRect(x, y, w, h));
  blocks.each(layout, view, scale, (i, x, y, w, h) => {
    context.fillStyle = colours[heldBy(run, map, i)] || colours.other;
    // An edge parts neighbours that are large enough.
    const gap = w > 3 && h > 3 ? 0.5 : 0;
    context.fillRect(x, y + gap, Math.max(w - gap, 0.5), h - gap);
    if (w > 46 && h > 11) nameBlock(context, run, blocks.block[i], x, y, w, h);
  });
  context.fillStyle = theme.soft;
  map.segments.each(layout, view, scale, (i, x, y, w) => context.fillRect(x, y, w, 0.6));
}

function nameBlock(context, run, block, x, y, width, height) {
  if (block < 0) return;
  const fill = context.fillStyle;
  context.save();
  context.beginPath(); context.rect(x, y, width - 2, height); context.clip();
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = isLight(fill) ? "#1c2330" : "#ffffff";
  context.fillText(word(run, run.tasks.blocks.id[block]), x + 4, y + height / 2);
  context.restore();
}

/** What stands next to the map: its title, sizes, and how many blocks are too small to be in the page. */
function paintMapAxis(context, run, layout, theme, map) {
  const height = layout.mapEnd - layout.mapTop;
  const unit = SIZES.find(([, factor]) => map.total >= 1.18 * factor) || ["B", 1];
  const step = Math.max(1 / unit[1], stepFor(1000 * map.total / unit[1], 4) / 1000) * unit[1];
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = theme.soft;
  context.textAlign = "right";
  for (let bytes = 0; bytes <= map.total; bytes += step)
    context.fillText(`${short(bytes / unit[1])} ${unit[0]}`, layout.left - 6, layout.mapEnd - bytes / map.total * height);
  if (map.omitted) context.fillText(`${map.omitted.toLocaleString("en")} smaller blocks are left out`, layout.right, layout.mapTop - 11);
  context.textAlign = "left";
  const whose = run.maps.length > 1 ? ` of GPU ${run.maps.indexOf(map)}` : "";
  context.fillText(`segment map${whose}: addresses of tensors`, layout.left, layout.mapTop - 11);
}

/** What is at a place of the map. */
function mapFacts(run, map, layout, time, y, origin, unit) {
  const place = (layout.mapEnd - y) / (layout.mapEnd - layout.mapTop) * map.total;
  const i = map.blocks.at(time, place), k = map.segments.at(time, place);
  const segment = k < 0 ? [] : [["segment", sizeText(map.segments.bytes[k])]];
  const shown = (rectangles, n) => [["from", exactTime(rectangles.start[n] - origin, unit)], ["to", exactTime(rectangles.end[n] - origin, unit)]];
  if (i < 0) {
    if (k < 0) return { title: "not reserved", rows: [["address", sizeText(Math.round(place))]] };
    return { title: "free in a segment", rows: [...segment, ["address", sizeText(Math.round(place))]] };
  }
  const { blocks } = map, block = blocks.block[i];
  const layer = block < 0 ? "" : word(run, run.tasks.blocks.layer[block]);
  const rows = [["tensor", heldBy(run, map, i)], ["layer", layer], ["allocated", exactSize(blocks.bytes[i])]];
  rows.push(["address", sizeText(blocks.low[i])], ...segment, ...shown(blocks, i));
  return { title: block < 0 ? "block" : word(run, run.tasks.blocks.id[block]), rows: rows.filter(([, text]) => text !== "") };
}
