// The time axis under the picture and the lines that lead up from it.
// Lives here: which times are marked, and painting them. Does not live here: texts of single times (words.js).

/** Round distances between marks: 1, 2 or 5 times a power of ten. */
function stepFor(length, count) {
  const rough = Math.max(1, length / count), power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find(part => part * power >= rough) || 10);
}

/** Times count from `origin`, where the iteration begins. */
function paintAxis(context, layout, view, theme, origin) {
  const step = stepFor(view.length, (layout.right - layout.left) / 110);
  const unit = unitFor(Math.max(view.end - origin, 1));
  const first = Math.ceil((view.start - origin) / step), last = Math.floor((view.end - origin) / step);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let mark = first; mark <= last; mark++) {
    const x = Math.round(layout.x(view, origin + mark * step));
    context.fillStyle = theme.grid;
    context.fillRect(x, TOP, 1, layout.rowsEnd - TOP);
    context.fillRect(x, layout.memoryTop, 1, layout.memoryEnd - layout.memoryTop + 4);
    if (layout.hasMap) context.fillRect(x, layout.mapTop, 1, layout.mapEnd - layout.mapTop + 4);
    context.fillStyle = theme.soft;
    context.fillText(exactTime(mark * step, unit), Math.min(x, layout.width - 30), layout.bottom + 7);
  }
}

/** Where iterations end, over everything. */
function paintEnds(context, layout, view, theme, ends) {
  context.fillStyle = theme.text;
  for (const end of ends) {
    if (end <= view.start || end >= view.end) continue;
    const x = Math.round(layout.x(view, end));
    for (let y = TOP; y < layout.bottom; y += 6) context.fillRect(x, y, 1, 3);
  }
}
