// Memory in use over time, with its budget, on the axis of the streams.
// Lives here: painting the curves. Does not live here: their values (columns.js).

/** Highest value in each pixel, entered with what held before: a step function that loses no peak. */
function pixelPeaks(curve, values, layout, view) {
  const width = Math.round(layout.right - layout.left), peaks = new Float64Array(width), share = view.length / width;
  let at = curve.at(view.start), now = at >= 0 ? values[at] : 0;
  for (let pixel = 0; pixel < width; pixel++) {
    const until = view.start + (pixel + 1) * share;
    let peak = now, first = true;
    while (at + 1 < values.length && curve.time[at + 1] < until) {
      at++;
      // What holds for no time at the pixel's begin is no peak of it, unless it is a spike.
      peak = first && curve.time[at] <= view.start + pixel * share ? values[at] : Math.max(peak, values[at]);
      first = false;
      now = values[at];
    }
    peaks[pixel] = peak;
  }
  return peaks;
}

/** The GPU that holds most comes to the fore. */
function neediest(run, from, to) {
  let best = 0, most = -1;
  run.memory.forEach((curve, gpu) => {
    const peak = curve.time.length ? curve.live[curve.peak(from, to)] : 0;
    if (peak > most) { best = gpu; most = peak; }
  });
  return best;
}

/** What the memory panel shows: the scale holds for the whole scope, so that zooming does not change it. */
function memoryScale(run, scope) {
  const first = neediest(run, ...scope), curve = run.memory[first];
  let top = 1;
  if (curve.time.length) {
    const at = Math.max(0, curve.at(scope[0]));
    const most = curve.reserved || curve.used;
    for (let i = at; i < curve.time.length && curve.time[i] < scope[1]; i++) top = Math.max(top, most[i]);
  }
  // A budget far above the curve would flatten it: then it is named, not drawn.
  const drawn = run.budget <= 4 * top;
  return { first, top: 1.18 * Math.max(top, drawn ? run.budget : 0), drawn };
}

function paintMemory(context, run, layout, view, theme, scale) {
  const { memoryTop: top, memoryEnd: bottom, left, right } = layout, height = bottom - top;
  const y = bytes => bottom - bytes / scale.top * height;
  const curve = run.memory[scale.first];
  const live = pixelPeaks(curve, curve.live, layout, view);
  area(context, left, live, y, bottom, theme.live, 0.3);
  if (curve.padded) {
    const used = pixelPeaks(curve, curve.used, layout, view);
    context.globalAlpha = 0.6;
    context.fillStyle = theme.padding;
    used.forEach((bytes, i) => { if (bytes > live[i]) context.fillRect(left + i, y(bytes), 1, y(live[i]) - y(bytes)); });
    context.globalAlpha = 1;
  }
  run.memory.forEach((other, gpu) => {
    if (gpu !== scale.first) outline(context, left, pixelPeaks(other, other.live, layout, view), y, theme.soft, 0.8);
  });
  outline(context, left, live, y, theme.live, 1.4);
  if (curve.reserved) outline(context, left, pixelPeaks(curve, curve.reserved, layout, view), y, theme.reserved, 1.8);
  if (scale.drawn) {
    context.strokeStyle = theme.budget;
    context.lineWidth = 1.4;
    context.setLineDash([6, 4]);
    context.beginPath(); context.moveTo(left, y(run.budget)); context.lineTo(right, y(run.budget)); context.stroke();
    context.setLineDash([]);
  }
  const kept = run.unlimited ? ", not kept: memory without limit" : scale.drawn ? "" : ", above this panel";
  note(context, `budget ${sizeText(run.budget)}${kept}`, right, top - 11, theme, theme.budget, "right");
  paintPeak(context, curve, layout, view, theme, y, scale.drawn ? y(run.budget) : -1);
}

function area(context, left, values, y, bottom, colour, alpha) {
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(left, bottom);
  values.forEach((bytes, i) => { context.lineTo(left + i, y(bytes)); context.lineTo(left + i + 1, y(bytes)); });
  context.lineTo(left + values.length, bottom);
  context.fill();
  context.globalAlpha = 1;
}

function outline(context, left, values, y, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  values.forEach((bytes, i) => {
    if (i === 0) context.moveTo(left, y(bytes));
    else if (values[i - 1] !== bytes) { context.lineTo(left + i, y(values[i - 1])); context.lineTo(left + i, y(bytes)); }
  });
  context.lineTo(left + values.length, y(values[values.length - 1]));
  context.stroke();
}

/** What stands behind the curves: sizes and their lines. */
function paintMemoryAxis(context, layout, theme, scale, run) {
  const y = bytes => layout.memoryEnd - bytes / scale.top * (layout.memoryEnd - layout.memoryTop);
  const unit = SIZES.find(([, factor]) => scale.top >= 1.18 * factor) || ["B", 1];
  const step = Math.max(1 / unit[1], stepFor(1000 * scale.top / unit[1], 4) / 1000) * unit[1];
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let bytes = 0; bytes <= scale.top; bytes += step) {
    context.fillStyle = theme.grid;
    context.fillRect(layout.left, Math.round(y(bytes)), layout.right - layout.left, 1);
    context.fillStyle = theme.soft;
    context.fillText(`${short(bytes / unit[1])} ${unit[0]}`, layout.left - 6, y(bytes));
  }
  context.textAlign = "left";
  context.fillStyle = theme.soft;
  const whose = run.memory.length > 1 ? `memory of GPU ${scale.first}; thin: the other GPUs` : "device memory";
  context.fillText(whose, layout.left, layout.memoryTop - 11);
  if (run.memory[scale.first].reserved) paintLevelNames(context, layout, theme, layout.left + context.measureText(whose).width);
}

/** What PyTorch's allocator distinguishes, each in the colour of its curve. */
function paintLevelNames(context, layout, theme, x) {
  for (const [text, colour] of [["live", theme.live], ["allocated", theme.padding], ["reserved", theme.reserved]]) {
    context.fillStyle = colour;
    context.fillRect(x + 14, layout.memoryTop - 16, 10, 10);
    context.fillStyle = theme.soft;
    context.fillText(text, x + 28, layout.memoryTop - 11);
    x += 32 + context.measureText(text).width;
  }
}

/** The peak of what is seen; its text keeps off the line of the budget. */
function paintPeak(context, curve, layout, view, theme, y, line) {
  if (!curve.time.length) return;
  const at = curve.peak(view.start, view.end), bytes = curve.live[at];
  const x = Math.min(layout.right, Math.max(layout.left, layout.x(view, curve.time[at])));
  context.fillStyle = theme.text;
  context.beginPath(); context.arc(x, y(bytes), 3, 0, 2 * Math.PI); context.fill();
  const side = x > layout.right - 220 ? "right" : "left";
  const near = Math.abs(y(bytes) - 10 - line) < 9, beside = near ? line - 10 : y(bytes) - 10;
  note(context, `peak ${sizeText(bytes)}`, x + (side === "left" ? 7 : -7), beside, theme, theme.text, side);
}

/** A text that stays readable over curves. */
function note(context, text, x, y, theme, colour, side) {
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = side;
  context.textBaseline = "middle";
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeStyle = theme.page;
  context.strokeText(text, x, y);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}
