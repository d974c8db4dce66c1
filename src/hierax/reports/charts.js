// Zoom, the choice of the x axis and of a logarithm, for charts that are there as SVG already. Without this script the
// page says the same. scales.py and svg.py draw the first view; what is here follows them.
"use strict";
(() => {
  const WIDTH = 640, HEIGHT = 280, LEFT = 68, RIGHT = 14, TOP = 12, BOTTOM = 42, TICKS = 6, COLOURS = 6;
  const NEAR = 40;  // pixels within which the readout names a point
  const panels = JSON.parse(document.getElementById("panels").textContent);

  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
  const short = (value, digits = 6) => String(Number(value.toPrecision(digits)));

  // Numbers of an axis with as many digits as it takes to tell them apart.
  function texts(numbers) {
    const largest = Math.max(...numbers.map(Math.abs), 0);
    const apart = numbers.length > 1 && largest > 0 ? Math.ceil(Math.log10(largest / (numbers.at(-1) - numbers.at(-2)))) + 2 : 6;
    return numbers.map((value) => short(value, Math.min(Math.max(6, apart), 15)));
  }

  function padded(low, high, least) {
    let width = high - low;
    if (width <= Math.max(least, 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) {
      width = Math.max(least, 0.1 * Math.abs(low), 0.1 * Math.abs(high)) || 1;
      const middle = 0.5 * (low + high);
      return [middle - 0.6 * width, middle + 0.6 * width];
    }
    return [low - 0.04 * width, high + 0.04 * width];
  }

  function extent(values, log) {
    const found = finite(values).filter((value) => !log || value > 0).map((value) => log ? Math.log10(value) : value);
    if (!found.length) return log ? [-1, 1] : [0, 1];
    const low = found.reduce((a, b) => Math.min(a, b)), high = found.reduce((a, b) => Math.max(a, b));
    return padded(low, high, log ? 0.3 : 0);
  }

  function roundNumbers(low, high) {
    const rough = (high - low) / TICKS;
    if (!(rough > 0) || !Number.isFinite(rough)) return [];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => power * factor).find((size) => size >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9) && ticks.length < 40; k++) ticks.push(k * step);
    return ticks;
  }

  function betweenDecades(low, high) {
    const found = [];
    for (let k = Math.floor(low); k <= Math.ceil(high); k++) found.push(...[1, 2, 5].map((factor) => factor * 10 ** k));
    const inside = found.filter((v) => v >= 10 ** low && v <= 10 ** high);
    return inside.length > 1 ? inside : roundNumbers(10 ** low, 10 ** high).filter((v) => v > 0);
  }

  // A point: a disc, a square or a triangle, so that colours are not all that tells series apart.
  function mark(colour, x, y) {
    const style = "s" + colour % COLOURS, f = (value) => value.toFixed(1);
    if (colour % 3 === 0) return `<circle class="${style}" cx="${f(x)}" cy="${f(y)}" r="3"/>`;
    if (colour % 3 === 1) return `<rect class="${style}" x="${f(x - 2.7)}" y="${f(y - 2.7)}" width="5.4" height="5.4"/>`;
    return `<polygon class="${style}" points="${f(x)},${f(y - 3.6)} ${f(x - 3.4)},${f(y + 2.6)} ${f(x + 3.4)},${f(y + 2.6)}"/>`;
  }

  class Chart {
    constructor(figure, panel, number) {
      this.figure = figure; this.panel = panel; this.number = number;
      this.svg = figure.querySelector("svg");
      this.canvas = this.svg.querySelector(".canvas");
      this.first = this.canvas.innerHTML;
      this.controls = figure.querySelector(".controls");
      this.axis = this.controls.querySelector("select");
      this.log = this.controls.querySelector("input");
      this.readout = figure.querySelector(".readout");
      this.view = {...panel.view};
      this.listen();
    }

    get drawn() { return this.panel.series.filter((one) => one.x[this.axis.value]); }

    listen() {
      this.controls.hidden = false;
      this.svg.setAttribute("tabindex", "0");
      this.axis.addEventListener("change", () => { this.whole(true); this.draw(); });
      this.log.addEventListener("change", () => { this.whole(false); this.draw(); });
      const [all, reset] = this.controls.querySelectorAll("button");
      all.addEventListener("click", () => { this.whole(true); this.whole(false); this.draw(); });
      reset.addEventListener("click", () => this.reset());
      this.svg.addEventListener("dblclick", () => this.reset());
      this.svg.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointercancel", () => { this.from = null; this.band(null); });
      this.svg.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    }

    reset() {
      this.axis.selectedIndex = 0;
      this.log.checked = this.panel.log;
      this.view = {...this.panel.view};
      this.canvas.innerHTML = this.first;
      this.readout.textContent = "";
    }

    // All of one axis in view: of x, or of y (with zeros on a line of their own below a logarithm).
    whole(ofX) {
      const view = this.view;
      if (ofX) {
        [view.x0, view.x1] = extent(this.drawn.flatMap((one) => one.x[this.axis.value]), false);
        return;
      }
      const values = this.drawn.flatMap((one) => one.y).concat(this.panel.reference === null ? [] : [this.panel.reference]);
      view.log = this.log.checked;
      view.zero = view.log && values.includes(0);
      [view.y0, view.y1] = extent(values, view.log);
      if (view.zero) view.y0 -= 0.14 * (view.y1 - view.y0);
      view.zeroAt = view.y0 + 0.04 * (view.y1 - view.y0);
    }

    across(x) { return LEFT + (WIDTH - LEFT - RIGHT) * (x - this.view.x0) / (this.view.x1 - this.view.x0); }

    down(line) { return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (line - this.view.y0) / (this.view.y1 - this.view.y0); }

    // Where a value lies on the y axis, before it is made a length; null: nowhere.
    line(value) {
      if (value === null) return null;
      if (!this.view.log) return value;
      if (value > 0) return Math.log10(value);
      return value === 0 && this.view.zero ? this.view.zeroAt : null;
    }

    ticks() {
      const {y0, y1, log, zero, zeroAt} = this.view;
      const named = (numbers) => texts(numbers).map((text, i) => [numbers[i], text]);
      if (!log) return named(roundNumbers(y0, y1));
      const low = zero ? Math.max(y0, zeroAt + 0.07 * (y1 - y0)) : y0;
      const first = Math.ceil(low), last = Math.floor(y1);
      const every = Math.max(1, Math.ceil((last - first + 1) / (TICKS + 1)));
      let found = [];
      for (let k = first; k <= last; k += every) found.push([k, k >= -3 && k <= 4 ? short(10 ** k) : "1e" + k]);
      if (found.length < 3) found = named(betweenDecades(low, y1)).map(([v, text]) => [Math.log10(v), text]);
      return zero && zeroAt >= y0 && zeroAt <= y1 ? [[zeroAt, "0"], ...found] : found;
    }

    draw() {
      const parts = ['<g class="frame">'];
      for (const [line, text] of this.ticks()) {
        const at = this.down(line).toFixed(1);
        parts.push(`<line class="grid" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${at}" y2="${at}"/>`);
        parts.push(`<text class="tick y" x="${LEFT - 7}" y="${Number(at) + 4}">${escaped(text)}</text>`);
      }
      const across = roundNumbers(this.view.x0, this.view.x1), named = texts(across);
      for (const [i, value] of across.entries()) {
        const at = this.across(value).toFixed(1);
        parts.push(`<line class="grid" x1="${at}" x2="${at}" y1="${TOP}" y2="${HEIGHT - BOTTOM}"/>`);
        parts.push(`<text class="tick x" x="${at}" y="${HEIGHT - BOTTOM + 16}">${escaped(named[i])}</text>`);
      }
      parts.push(`</g><clipPath id="clip-${this.number}"><rect x="${LEFT}" y="${TOP}" width="${WIDTH - LEFT - RIGHT}" height="${HEIGHT - TOP - BOTTOM}"/></clipPath>`);
      parts.push(`<g class="marks${this.panel.many ? " many" : ""}" clip-path="url(#clip-${this.number})">`);
      for (const one of this.drawn) parts.push(this.marks(one));
      const reference = this.panel.reference === null ? null : this.line(this.panel.reference);
      if (reference !== null) {
        const at = this.down(reference).toFixed(1);
        parts.push(`<line class="reference" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${at}" y2="${at}"/>`);
      }
      parts.push(`</g><text class="axis-name" x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 6}">${escaped(this.panel.axes[this.axis.value])}</text>`);
      this.canvas.innerHTML = parts.join("");
    }

    places(one) {
      const xs = one.x[this.axis.value], places = [];
      for (let i = 0; i < one.y.length; i++) {
        const line = this.line(one.y[i]);
        places.push(line === null || xs[i] === null ? null : [this.across(xs[i]), this.down(line)]);
      }
      return places;
    }

    marks(one) {
      const bound = (value) => Math.max(-1e4, Math.min(1e4, value)).toFixed(1);
      const places = this.places(one);
      const there = places.filter((place) => place);
      if (one.dots || there.length === 1) {
        const inside = ([x, y]) => x >= LEFT - 5 && x <= WIDTH - RIGHT + 5 && y >= TOP - 5 && y <= HEIGHT - BOTTOM + 5;
        return there.filter(inside).map(([x, y]) => mark(one.colour, x, y)).join("");
      }
      let path = "", pen = false;
      for (const place of places) {
        if (place) path += (pen ? "L" : "M") + bound(place[0]) + " " + bound(place[1]);
        pen = Boolean(place);
      }
      return path ? `<path class="s${one.colour % COLOURS}" d="${path}"/>` : "";
    }

    // A point of the pointer in the units of the drawing.
    at(event) {
      const box = this.svg.getBoundingClientRect();
      return [(event.clientX - box.left) * WIDTH / box.width, (event.clientY - box.top) * HEIGHT / box.height];
    }

    zoom(factor, px, py) {
      const view = this.view;
      const x = view.x0 + (px - LEFT) / (WIDTH - LEFT - RIGHT) * (view.x1 - view.x0);
      const y = view.y0 + (HEIGHT - BOTTOM - py) / (HEIGHT - TOP - BOTTOM) * (view.y1 - view.y0);
      this.show(x + (view.x0 - x) * factor, x + (view.x1 - x) * factor, y + (view.y0 - y) * factor, y + (view.y1 - y) * factor);
    }

    // A new range in view, unless numbers cannot tell its ends apart.
    show(x0, x1, y0, y1) {
      const told = (low, high) => high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high), 1e-290);
      if (told(x0, x1) && told(y0, y1)) {
        Object.assign(this.view, {x0, x1, y0, y1});
        this.draw();
      }
    }

    pan(right, up) {
      const view = this.view, x = right * (view.x1 - view.x0), y = up * (view.y1 - view.y0);
      this.show(view.x0 + x, view.x1 + x, view.y0 + y, view.y1 + y);
    }

    // The page scrolls under the pointer as everywhere, unless the chart was chosen (a click, the tab key) or Ctrl is held.
    wheel(event) {
      if (!event.ctrlKey && document.activeElement !== this.svg) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, ...this.at(event));
    }

    key(event) {
      const middle = [(LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2];
      const done = {
        "+": () => this.zoom(0.8, ...middle), "=": () => this.zoom(0.8, ...middle), "-": () => this.zoom(1.25, ...middle),
        ArrowLeft: () => this.pan(-0.1, 0), ArrowRight: () => this.pan(0.1, 0), ArrowUp: () => this.pan(0, 0.1),
        ArrowDown: () => this.pan(0, -0.1), "0": () => this.reset(), Escape: () => this.svg.blur(),
      }[event.key];
      if (!done || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      done();
    }

    press(event) {
      if (event.button !== 0) return;
      this.svg.focus({preventScroll: true});
      this.from = this.at(event);
      this.panning = event.shiftKey;
      this.svg.setPointerCapture(event.pointerId);
    }

    move(event) {
      const here = this.at(event);
      if (!this.from) { this.tell(here); return; }
      if (this.panning) {
        this.pan((this.from[0] - here[0]) / (WIDTH - LEFT - RIGHT), (here[1] - this.from[1]) / (HEIGHT - TOP - BOTTOM));
        this.from = here;
        return;
      }
      this.band(here);
    }

    band(here) {
      this.canvas.querySelector(".band")?.remove();
      if (!here || !this.from) return;
      const [x, y] = [Math.min(this.from[0], here[0]), Math.min(this.from[1], here[1])];
      const size = `width="${Math.abs(this.from[0] - here[0])}" height="${Math.abs(this.from[1] - here[1])}"`;
      this.canvas.insertAdjacentHTML("beforeend", `<rect class="band" x="${x}" y="${y}" ${size}/>`);
    }

    release(event) {
      const from = this.from, here = this.at(event), view = this.view;
      this.from = null;
      this.band(null);
      if (!from || this.panning || Math.abs(here[0] - from[0]) < 6 || Math.abs(here[1] - from[1]) < 6) return;
      const x = (px) => view.x0 + (px - LEFT) / (WIDTH - LEFT - RIGHT) * (view.x1 - view.x0);
      const y = (py) => view.y0 + (HEIGHT - BOTTOM - py) / (HEIGHT - TOP - BOTTOM) * (view.y1 - view.y0);
      this.show(x(Math.min(from[0], here[0])), x(Math.max(from[0], here[0])), y(Math.max(from[1], here[1])), y(Math.min(from[1], here[1])));
    }

    // Name the nearest point.
    tell(here) {
      let best = null;
      for (const one of this.drawn) {
        this.places(one).forEach((place, i) => {
          if (!place) return;
          const apart = Math.hypot(place[0] - here[0], place[1] - here[1]);
          if (apart < NEAR && (!best || apart < best.apart)) best = {apart, one, i};
        });
      }
      const named = best && best.one.name ? best.one.name + ": " : "";
      this.readout.textContent = best
        ? `${named}${short(best.one.y[best.i])} at ${this.panel.axes[this.axis.value]} ${short(best.one.x[this.axis.value][best.i])}` : "";
    }
  }

  document.querySelectorAll("figure.chart").forEach((figure, number) => new Chart(figure, panels[number], number));
})();
