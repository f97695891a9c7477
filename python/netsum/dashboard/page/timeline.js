// The operations of all ranks over time, a row for each rank.

import { html, useState } from "./vendor.js";
import { Canvas, pointer } from "./canvas.js";
import { bytes, duration } from "./format.js";
import { colours } from "./theme.js";

const ROW = 18;
const TOP = 22;
const LEFT = 56;
const ROWS = 64;

/** The first time span that is shown: some steps, or what there is. */
const span = (step) => Math.min(Math.max((step ?? 0.5) * 6, 0.05), 60);

const tick = (seconds) => {
  const size = 10 ** Math.floor(Math.log10(seconds));
  return size * [1, 2, 5, 10].find((factor) => size * factor >= seconds * 0.999);
};

export const Timeline = ({ operations, pauses, step, now }) => {
  const [zoom, setZoom] = useState(null); // seconds; null: by the step
  const [until, setUntil] = useState(null); // a time; null: live
  const [told, setTold] = useState(null);
  const [held, setHeld] = useState(null);
  const ranks = Object.entries(operations.ranks).slice(0, ROWS);
  const latest = ranks.flatMap(([, rows]) => rows.slice(-1).map(([, , , called, lasts]) => called + (lasts ?? 0)));
  // Ranks report once a second, one after the other: the last span of which all ranks have told, unless one is silent.
  const newest = latest.length ? Math.max(...latest.map((at) => at - 2), Math.min(...latest)) : 0;
  const seconds = zoom ?? span(step);
  const end = until ?? (newest || now);
  const begin = end - seconds;
  const many = Object.keys(operations.ranks).length;
  const height = () => TOP + ROW * Math.max(ranks.length, 1) + 8;
  const x = (at, width) => LEFT + ((at - begin) / seconds) * (width - LEFT - 6);

  const draw = (context, width, tall) => {
    const paint = colours();
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    const every = tick(seconds / Math.max(2, Math.floor(width / 130)));
    for (let at = Math.ceil(begin / every) * every; at < end; at += every) {
      context.fillStyle = paint.edge;
      context.fillRect(x(at, width), TOP - 4, 1, tall);
      context.fillStyle = paint.soft;
      context.fillText(`${(at - end).toFixed(every < 0.01 ? 3 : every < 1 ? 2 : 0)} s`, x(at, width) + 3, 12);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, tall);
    context.clip();
    pauses.forEach((pause) => {
      if (pause.at_unix_s > end || pause.at_unix_s + pause.seconds < begin) return;
      context.fillStyle = paint.bad;
      context.globalAlpha = 0.18;
      const from = x(pause.at_unix_s, width);
      context.fillRect(from, TOP, Math.max(2, x(pause.at_unix_s + pause.seconds, width) - from), tall);
      context.globalAlpha = 1;
    });
    ranks.forEach(([, rows], row) => {
      rows.forEach(([, call, , called, lasts]) => {
        const ended = called + (lasts ?? Math.max(now - called, 0));
        if (ended < begin || called > end) return;
        const from = x(called, width);
        context.fillStyle = paint.series[call % paint.series.length];
        context.globalAlpha = lasts == null ? 0.45 : 1;
        context.fillRect(from, TOP + row * ROW + 2, Math.max(1, x(ended, width) - from - 0.5), ROW - 5);
      });
      context.globalAlpha = 1;
    });
    context.restore();
    context.fillStyle = paint.soft;
    ranks.forEach(([rank], row) => context.fillText(`rank ${rank}`, 2, TOP + row * ROW + 13));
  };

  const under = (event) => {
    const [px, py] = pointer(event);
    const row = ranks[Math.floor((py - TOP) / ROW)];
    if (!row) return null;
    const width = event.currentTarget.clientWidth;
    const [rank, rows] = row;
    const found = rows.filter(([, , , called, lasts]) => x(called, width) <= px + 2 && x(called + (lasts ?? 1e9), width) >= px - 2).pop();
    return found ? { rank, found } : null;
  };
  const describe = ({ rank, found: [number, call, size, called, lasts] }) =>
    `rank ${rank}, #${number}: ${operations.calls[call]}, ${bytes(size)}, ${lasts == null ? `in progress for ${duration(Math.max(now - called, 0))}` : duration(lasts)}`;
  const move = (event) => {
    if (held == null) return setTold(under(event));
    const [px] = pointer(event);
    setUntil(held.end - ((px - held.x) / (event.currentTarget.clientWidth - LEFT)) * seconds);
  };
  const scale = (factor) => setZoom(Math.min(Math.max(seconds * factor, 0.002), 600));
  const pan = (share) => setUntil(end + share * seconds);
  const keys = (event) => {
    const act = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => scale(0.6), "=": () => scale(0.6), "-": () => scale(1.7), End: () => setUntil(null) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const wheel = (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    scale(event.deltaY > 0 ? 1.2 : 0.83);
  };
  return html`<div class="tools">
      <button onClick=${() => pan(-0.3)} aria-label="earlier">←</button>
      <button onClick=${() => pan(0.3)} aria-label="later">→</button>
      <button onClick=${() => scale(0.5)} aria-label="zoom in">+</button>
      <button onClick=${() => scale(2)} aria-label="zoom out">−</button>
      <button aria-pressed=${until == null} onClick=${() => setUntil(until == null ? end : null)}>live</button>
      <span class="soft small">${operations.calls.map((call, at) => html`<span class="key"><i class=${`dot s${(at % 6) + 1}`}></i>${call}</span> `)}</span>
    </div>
    <div class="picture" tabindex="0" role="group" aria-label="Operations; arrow keys move, plus and minus zoom, End goes live" onKeyDown=${keys}>
      <${Canvas} label=${`operations of ${many} ranks in ${duration(seconds)}`} height=${height} draw=${draw}
        onPointerMove=${move} onPointerLeave=${() => setTold(null)} onWheel=${wheel}
        onPointerDown=${(event) => { event.currentTarget.setPointerCapture(event.pointerId); setHeld({ x: pointer(event)[0], end }); }}
        onPointerUp=${() => setHeld(null)} />
    </div>
    <p class="small soft" aria-live="polite">${told ? describe(told) : many > ROWS ? `The first ${ROWS} of ${many} ranks; the trace file has all.` : "Point at an operation; drag moves, Ctrl and wheel zoom."}</p>`;
};
