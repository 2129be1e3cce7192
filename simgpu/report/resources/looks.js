// Colours and hatching, the same as in simgpu's figures; on a dark page, waiting is dark too.
// Lives here: what a look is painted with. Does not live here: which span has which look (simgpu/analysis/bars.py).

const TILE = 8;

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.hasAttribute("data-paper");
}

function rgb(hex) {
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

/** A colour that lies at a share of the way from one to another. */
function mixed(from, to, share) {
  const [a, b] = [rgb(from), rgb(to)];
  return "#" + a.map((part, i) => Math.round(part + (b[i] - part) * share).toString(16).padStart(2, "0")).join("");
}

function isLight(hex) {
  const [r, g, b] = rgb(hex);
  return 0.299 * r + 0.587 * g + 0.114 * b > 150;
}

/** A small picture that repeats without a seam; null for no hatching. */
function hatching(context, hatch, ink, ratio) {
  if (!hatch) return null;
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(TILE * ratio);
  const pen = tile.getContext("2d"), side = tile.width;
  pen.strokeStyle = pen.fillStyle = ink;
  pen.lineWidth = ratio;
  const line = (x0, y0, x1, y1) => { pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); };
  for (const shift of [-side, 0, side]) {
    if (hatch === "/" || hatch === "x") line(shift - 1, side + 1, shift + side + 1, -1);
    if (hatch === "\\" || hatch === "x") line(shift - 1, -1, shift + side + 1, side + 1);
  }
  if (hatch === ".") {
    pen.beginPath(); pen.arc(side / 2, side / 2, ratio, 0, 2 * Math.PI); pen.fill();
  }
  return context.createPattern(tile, "repeat");
}

/** Everything that painting needs to know of colours, for the page as it is now. */
class Theme {
  constructor(looks, context, ratio) {
    const dark = isDark();
    for (const name of ["page", "text", "soft", "line", "row", "grid", "live", "padding", "reserved", "free", "budget", "mark", "shade"])
      this[name] = cssColour(`--${name}`);
    this.looks = looks.map(look => {
      const waits = look.hatch !== "" || look.height < 0.5;
      const fill = !dark ? look.fill : waits ? mixed(this.page, look.hatch ? look.ink : look.fill, look.hatch ? 0.22 : 0.4)
        : isLight(mixed(look.fill, "#ffffff", 0.2)) ? look.fill : mixed(look.fill, "#ffffff", 0.14);
      return {
        label: look.label, fill, waits, height: look.height,
        pattern: hatching(context, look.hatch, dark ? mixed(this.page, look.ink, 0.75) : look.ink, ratio),
        ink: waits ? this.text : isLight(fill) ? "#1c2330" : "#ffffff",
      };
    });
  }
}
