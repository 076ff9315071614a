"""The one script that a page may have: it widens the time axis of a picture of lanes, which its box then scrolls along."""

from __future__ import annotations

# Bars, their words and the axis' numbers are placed anew; the names of lines stay where they are seen.
SCRIPT = """
for (const box of document.querySelectorAll(".zoomed")) {
  const svg = box.querySelector("svg"), plane = svg.querySelector(".plane"), names = svg.querySelector(".names");
  const {left, span, start, end, bottom} = Object.fromEntries(Object.entries(plane.dataset).map(([k, v]) => [k, +v]));
  const tools = box.previousElementSibling, make = n => document.createElementNS(svg.namespaceURI, n);
  const bars = [...plane.querySelectorAll("rect")].map(e => ({e, x: +e.getAttribute("x"), w: +e.getAttribute("width"),
    y: +e.getAttribute("y"), words: (e.dataset.words ?? "").split("|")}));
  const LETTER = 7.4, MOST = 512, over = svg.viewBox.baseVal.width - left - span;
  let zoom = 1;
  const word = (x, y, text) => {
    const t = make("text");
    t.setAttribute("x", x); t.setAttribute("y", y); t.setAttribute("text-anchor", "middle"); t.textContent = text;
    return t;
  };
  const draw = () => {
    const wide = left + span * zoom + over, high = svg.viewBox.baseVal.height, scale = span * zoom / (end - start);
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`); svg.setAttribute("width", wide);
    plane.querySelectorAll("text, .tick").forEach(e => e.remove());
    let step = 1;
    for (const m of [2, 2.5, 2]) if ((end - start) / step > 10 * zoom) step *= m;
    while ((end - start) / step > 10 * zoom) step *= 10;
    for (const m of [2, 2.5]) if ((end - start) / step * m <= 10 * zoom) step = Math.max(1, step / m);
    step = Math.round(step);
    for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
      const x = left + (at - start) * scale, line = make("path");
      line.setAttribute("class", "tick"); line.setAttribute("d", `M${x} 20V${bottom}`);
      plane.prepend(line); plane.append(word(x, 14, at.toLocaleString("en")));
    }
    for (const b of bars) {
      const x = left + (b.x - left) * zoom, w = b.w * zoom;
      b.e.setAttribute("x", x); b.e.setAttribute("width", w);
      const fits = b.words.find(t => t && t.length * LETTER + 2 < w);
      if (fits) b.e.after(word(x + w / 2, b.y + 13, fits));
    }
    tools.querySelector("output").textContent = `${zoom} x`;
  };
  const follow = () => names.setAttribute("transform", `translate(${box.scrollLeft} 0)`);
  const to = (by, at = box.clientWidth / 2) => {
    const next = by ? Math.min(MOST, Math.max(1, zoom * by)) : 1, place = (box.scrollLeft + at - left) / zoom;
    if (next == zoom) return;
    zoom = next;
    draw();
    box.scrollLeft = left + place * zoom - at;
    follow();
  };
  const KEYS = {"+": 2, "=": 2, "-": .5, "0": 0};
  box.addEventListener("scroll", follow);
  box.addEventListener("keydown", e => {
    if (!(e.key in KEYS) || e.ctrlKey || e.metaKey || e.altKey) return;
    to(KEYS[e.key]); e.preventDefault();
  });
  box.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.shiftKey) return;
    to((e.deltaY || e.deltaX) < 0 ? 2 : .5, e.clientX - box.getBoundingClientRect().left); e.preventDefault();
  }, {passive: false});
  for (const b of tools.querySelectorAll("button")) b.addEventListener("click", () => to(+b.dataset.by));
  tools.hidden = false;
}
"""
TOOLS = (
    '<div class="tools" role="group" aria-label="Zoom" hidden><button type="button" data-by="2">Zoom in</button> '
    '<button type="button" data-by="0.5">Zoom out</button> <button type="button" data-by="0">All</button> '
    '<output>1 x</output> <span class="note">also: + - 0 in the picture, Ctrl and wheel</span></div>\n'
)
STYLE = """
.tools { margin: .25rem 0; } .tools button { font: inherit; padding: .2rem .7rem; }
svg .names .paper { fill: var(--paper); }
"""
