// Spans as boxes; where many share a pixel, each pixel shows what most of its time went to.
// Lives here: painting the rows of streams. Does not live here: looks (looks.js) or what is marked (marks.js).
//
// A row costs as much as it has pixels, however many spans there are: sums of time by look, made once, tell what
// any pixel holds after two binary searches.

/** With more spans than that for each pixel, pixels are painted rather than spans. */
const SPANS_A_PIXEL = 2;
const PALEST = 0.25;

/** What stands behind the spans: the row's title and ground. */
function paintGround(context, row, layout, theme) {
  context.fillStyle = theme.row;
  context.fillRect(layout.left, row.y + 1, layout.right - layout.left, row.height - 2);
  context.fillStyle = theme.soft;
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(row.title, layout.left - 6, row.y + row.height / 2);
}

function paintRow(context, row, layout, view, theme, label) {
  const track = row.track;
  const [first, last] = track.within(view.start, view.end);
  if (last - first > SPANS_A_PIXEL * (layout.right - layout.left)) paintPixels(context, row, layout, view, theme);
  else paintSpans(context, row, layout, view, theme, first, last, label);
}

function box(context, row, look, x, width) {
  const height = Math.max(2, (row.height - 4) * Math.min(1, look.height / 0.8)), y = row.y + (row.height - height) / 2;
  context.fillStyle = look.fill;
  context.fillRect(x, y, width, height);
  if (look.pattern && width > 1.5) {
    context.fillStyle = look.pattern;
    context.fillRect(x, y, width, height);
  }
}

/** Waiting first, so that it never hides work. */
function paintSpans(context, row, layout, view, theme, first, last, label) {
  const track = row.track;
  for (const waits of [true, false]) {
    for (let i = first; i < last; i++) {
      const look = theme.looks[track.look[i]];
      if (look.waits !== waits || track.end[i] === track.start[i]) continue;
      const from = Math.max(layout.left, layout.x(view, track.start[i]));
      const to = Math.min(layout.right, layout.x(view, track.end[i]));
      const width = to - from;
      context.globalAlpha = width < 1 ? Math.max(PALEST, width) : 1;
      box(context, row, look, from, width > 5 ? width - 1 : Math.max(width, 1));
      if (width > 40 && look.height >= 0.8) {
        context.globalAlpha = 1;
        paintLabel(context, row, look, from, width, label(track, i));
      }
    }
  }
  context.globalAlpha = 1;
}

/** Without what follows the first word, and of that its end, where names differ. */
function fitted(text, room) {
  if (text.length <= room) return text;
  const first = text.split(" ")[0];
  return first.length <= room ? first : "…" + first.slice(first.length - room + 1);
}

function paintLabel(context, row, look, x, width, text) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  let room = Math.floor((width - 10) / 5.5), shown = fitted(text, room);
  while (room >= 4 && context.measureText(shown).width > width - 9) shown = fitted(text, --room);
  if (room < 4) return;
  if (look.pattern) {
    const wide = context.measureText(shown).width + 6;
    context.fillStyle = look.fill;
    context.fillRect(x + 2, row.y + row.height / 2 - 8, wide, 16);
  }
  context.fillStyle = look.ink;
  context.fillText(shown, x + 5, row.y + row.height / 2 + 0.5);
}

/** Time of a look before a time: of all spans that end by then, and of the one that runs. */
function spentBefore(track, sums, look, time, next) {
  const running = next > 0 && track.end[next - 1] > time && track.look[next - 1] === look;
  return sums[next] - (running ? track.end[next - 1] - time : 0);
}

function paintPixels(context, row, layout, view, theme) {
  const track = row.track, width = Math.round(layout.right - layout.left), share = view.length / width;
  const sums = track.looks.map(look => track.sumsOf(look));
  const before = new Float64Array(sums.length), spent = new Float64Array(sums.length);
  let runLook = -1, runAlpha = 0, runFrom = 0;
  const flush = to => {
    if (runLook < 0) return;
    context.globalAlpha = runAlpha;
    box(context, row, theme.looks[runLook], layout.left + runFrom, to - runFrom);
  };
  for (let pixel = -1; pixel < width; pixel++) {
    const time = view.start + (pixel + 1) * share, next = firstAtLeast(track.start, time);
    let busiest = -1, busy = 0;
    for (let k = 0; k < sums.length; k++) {
      const now = spentBefore(track, sums[k], track.looks[k], time, next);
      spent[k] = now - before[k];
      before[k] = now;
      busy += spent[k];
      if (spent[k] > 0 && (busiest < 0 || spent[k] > spent[busiest])) busiest = k;
    }
    if (pixel < 0) continue;
    const look = busiest < 0 ? -1 : track.looks[busiest];
    const alpha = Math.round(8 * (PALEST + (1 - PALEST) * Math.min(1, busy / share))) / 8;
    if (look !== runLook || alpha !== runAlpha) {
      flush(pixel);
      runLook = look; runAlpha = alpha; runFrom = pixel;
    }
  }
  flush(width);
  context.globalAlpha = 1;
}
