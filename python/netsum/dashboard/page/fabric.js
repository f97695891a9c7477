// The fabric as a picture: hosts below, each level of switches above, links by their load.

import { html, useMemo, useState } from "./vendor.js";
import { Canvas, pointer } from "./canvas.js";
import { colours } from "./theme.js";
import { duration, memory, percent, plural, rate } from "./format.js";

export const UP = 0;
export const DOWN = 2;
const LOADS = [0.001, 0.1, 0.3, 0.6, 0.8];
const STATES = ["up", "expected", "down"];

/** A step of the colour scale for a load. */
const step = (load) => LOADS.filter((from) => load >= from).length;

/** The figures of a link: loads of its directions as shares of its rate, and whether it is up. */
const linkOf = (links, at) => ({ there: (links[3 * at] ?? 0) / 1000, back: (links[3 * at + 1] ?? 0) / 1000, up: links[3 * at + 2] ?? 1 });

/** Numbers of nodes by level, from the top one down. */
const levels = (nodes) => {
  const found = [];
  nodes.forEach(([, , level], at) => (found[level] ??= []).push(at));
  return found.filter(Boolean).reverse();
};

/** More nodes are drawn as tiles in the colour of their fullest link: so many lines could not be told apart. */
const TILED = 300;
const GAP = 96;
const EDGE = 34;

/** Places [x, y, room] of nodes in a row for each level. */
const inRows = (nodes, width) => {
  const places = new Array(nodes.length);
  const all = levels(nodes);
  all.forEach((level, row) => level.forEach((node, at) => (places[node] = [(width * (at + 0.5)) / level.length, EDGE + row * GAP, width / level.length])));
  return { places, captions: [], height: 2 * EDGE + (all.length - 1) * GAP };
};

/** Places of nodes as tiles, a block for each level. */
const inTiles = (nodes, width) => {
  const places = new Array(nodes.length);
  const captions = [];
  let y = 4;
  levels(nodes).forEach((level) => {
    const host = nodes[level[0]][1] === "host";
    const pitch = host ? 9 : 16;
    const each = Math.max(1, Math.floor(width / pitch));
    captions.push([plural(level.length, host ? "host" : "switch"), y + 12]);
    y += 20;
    level.forEach((node, at) => (places[node] = [((at % each) + 0.5) * pitch, y + (Math.floor(at / each) + 0.5) * pitch, pitch]));
    y += Math.ceil(level.length / each) * pitch + 12;
  });
  return { places, captions, height: y };
};

const layout = (nodes, width) => (nodes.length > TILED ? inTiles : inRows)(nodes, width);

const drawTiles = (context, shape, figures, links, plan, picked, shown) => {
  const paint = colours();
  const fullest = new Float32Array(shape.nodes.length);
  shape.links.forEach(([a, b], at) => {
    if (shown && !shown.has(at)) return;
    const { there, back } = linkOf(links, at);
    const load = Math.max(there, back);
    if (load > fullest[a]) fullest[a] = load;
    if (load > fullest[b]) fullest[b] = load;
  });
  if (picked != null) {
    context.strokeStyle = paint.ink;
    context.lineWidth = 1;
    context.beginPath();
    shape.links.forEach(([a, b]) => (a === picked || b === picked) && line(context, plan.places[a], plan.places[b], 0));
    context.stroke();
  }
  shape.nodes.forEach(([name], at) => {
    const [x, y, pitch] = plan.places[at];
    const figure = figures.get(name);
    const dead = figure && figure[0] === DOWN;
    const side = pitch - 2;
    context.fillStyle = dead ? paint.ink : paint.load[step(fullest[at])];
    context.fillRect(x - side / 2, y - side / 2, side, side);
    if (dead) {
      context.strokeStyle = paint.card;
      context.lineWidth = 2;
      context.beginPath();
      line(context, [x - side / 3, y - side / 3], [x + side / 3, y + side / 3], 0);
      line(context, [x - side / 3, y + side / 3], [x + side / 3, y - side / 3], 0);
      context.stroke();
    }
    if (at === picked || (figure && figure[6] > 0.05)) {
      context.strokeStyle = at === picked ? paint.ink : paint.warn;
      context.lineWidth = 2;
      context.strokeRect(x - side / 2 + 1, y - side / 2 + 1, side - 2, side - 2);
    }
  });
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillStyle = paint.soft;
  plan.captions.forEach(([words, y]) => context.fillText(words, 0, y));
};

const line = (context, [x1, y1], [x2, y2], shift) => {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [right, down] = [(shift * (y2 - y1)) / length, (shift * (x1 - x2)) / length];
  context.moveTo(x1 + right, y1 + down);
  context.lineTo(x2 + right, y2 + down);
};

/** Links in batches of one colour: thousands are drawn by a few strokes. */
const drawLinks = (context, shape, links, places, shown) => {
  const paint = colours();
  const batches = Array.from({ length: LOADS.length + 2 }, () => []);
  shape.links.forEach(([a, b], at) => {
    const { there, back, up } = linkOf(links, at);
    if (!up) return batches[LOADS.length + 1].push([a, b, 0]);
    if (shown && !shown.has(at)) return batches[0].push([a, b, 0]);
    batches[step(there)].push([a, b, 1]);
    batches[step(back)].push([b, a, 1]);
  });
  const wide = shape.links.length < 200 ? 1 : 0.4;
  batches.forEach((batch, at) => {
    const down = at > LOADS.length;
    context.strokeStyle = down ? paint.bad : paint.load[at];
    context.lineWidth = Math.max(0.6, (down ? 1.5 : 1 + at * 1.1) * wide);
    context.setLineDash(down ? [4, 4] : []);
    context.beginPath();
    batch.forEach(([from, to, shift]) => line(context, places[from], places[to], shift * (1.2 + at * 0.55) * wide));
    context.stroke();
  });
  context.setLineDash([]);
};

const text = (context, words, x, y, colour, size = 12, weight = 600) => {
  context.font = `${weight} ${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.lineWidth = 4;
  context.strokeStyle = colours().card;
  context.strokeText(words, x, y);
  context.fillStyle = colour;
  context.fillText(words, x, y);
};

const drawNodes = (context, shape, figures, places, picked, width) => {
  const paint = colours();
  const down = [];
  shape.nodes.forEach(([name, kind], at) => {
    const [x, y, room] = places[at];
    const figure = figures.get(name);
    const dead = figure && figure[0] === DOWN;
    const roomy = room > 44;
    const radius = kind === "host" ? (roomy ? 5 : 2) : roomy ? 9 : 3.5;
    if (figure && figure[6] > 0.05) {
      context.beginPath();
      context.arc(x, y, radius + 5, 0, 2 * Math.PI);
      context.fillStyle = paint.warn;
      context.globalAlpha = 0.2 + 0.5 * figure[6];
      context.fill();
      context.globalAlpha = 1;
    }
    context.beginPath();
    if (kind === "host") context.arc(x, y, radius, 0, 2 * Math.PI);
    else context.roundRect(x - radius * 1.4, y - radius, radius * 2.8, radius * 2, 3);
    context.fillStyle = dead ? paint.bad : paint.card;
    context.fill();
    context.lineWidth = at === picked ? 3 : 1.5;
    context.strokeStyle = at === picked ? paint.ink : dead ? paint.bad : kind === "host" ? paint.soft : paint.ours;
    context.stroke();
    if (dead) down.push([name, x, y]);
    else if (roomy && room > 9 * name.length) {
      text(context, name, x, kind === "host" ? y + 20 : y - 15, kind === "host" ? paint.soft : paint.ink);
    }
  });
  down.slice(0, 12).forEach(([name, x, y]) => {
    text(context, `${name}: down`, Math.min(Math.max(x, 40), width - 40), y - 15, paint.bad);
  });
};

const Chosen = ({ shape, view, picked, figures }) => {
  if (picked == null) return html`<p class="soft small" id="chosen" aria-live="polite">Choose a switch or host for its figures.</p>`;
  const [name, kind] = shape.nodes[picked];
  const figure = figures.get(name);
  const links = shape.links
    .map(([a, b, most], at) => ({ a, b, most, at }))
    .filter(({ a, b }) => a === picked || b === picked)
    .map(({ a, b, most, at }) => ({ a, b, most, ...linkOf(view.links, at) }))
    .map(({ a, b, most, there, back, up }) => ({
      name: shape.nodes[a === picked ? b : a][0],
      out: a === picked ? there : back,
      back: a === picked ? back : there,
      most,
      up,
    }))
    .sort((one, other) => Math.max(other.out, other.back) - Math.max(one.out, one.back));
  return html`<div id="chosen" aria-live="polite" class="small">
    <p><b>${name}</b>, ${kind}${figure && html`: <b class=${figure[0] === DOWN ? "bad" : ""}>${STATES[figure[0]]}</b> for ${duration(figure[1])};
      memory ${memory(figure[2])} used, ${memory(figure[3])} leased of ${memory(figure[4])}; ${plural(figure[7], "lease")};
      ${percent(figure[6])} of results marked; ${figure[5]} drops/s`}</p>
    <p class="soft">${links.slice(0, 6).map((link) => html`<span class="link-figure">${link.name}: ${link.up ? html`↑ ${percent(link.out)} ↓ ${percent(link.back)} of ${rate(link.most)}` : "down"}</span> `)}
      ${links.length > 6 ? `and ${links.length - 6} more links` : ""}</p>
  </div>`;
};

/** `shown`: numbers of the links to bring out; null: all. */
export const Fabric = ({ shape, view, shown = null }) => {
  const [picked, setPicked] = useState(null);
  const figures = useMemo(() => {
    const found = new Map();
    shape.switches.forEach(([name], at) => view.switches[at] && found.set(name, view.switches[at]));
    return found;
  }, [shape, view]);
  const plan = useMemo(() => ({ width: 0, value: null }), [shape]);
  const placed = (width) => {
    if (plan.width !== width) Object.assign(plan, { width, value: layout(shape.nodes, width) });
    return plan.value;
  };
  const find = (event) => {
    const [x, y] = pointer(event);
    if (!plan.value) return null;
    let [best, nearest] = [null, 18];
    plan.value.places.forEach(([px, py], at) => {
      const distance = Math.hypot(px - x, py - y);
      if (distance < nearest) [best, nearest] = [at, distance];
    });
    return best;
  };
  const keys = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!move || !shape.nodes.length) return;
    event.preventDefault();
    const from = picked ?? (move > 0 ? -1 : 0);
    setPicked((from + move + shape.nodes.length) % shape.nodes.length);
  };
  const down = shape.switches.filter((_, at) => view.switches[at]?.[0] === DOWN).map(([name]) => name);
  const label = `${plural(shape.nodes.length, "node")} and ${plural(shape.links.length, "link")}; ${down.length ? `down: ${down.slice(0, 12).join(", ")}` : "all switches are up"}`;
  const draw = (context, width) => {
    const found = placed(width);
    if (shape.nodes.length > TILED) return drawTiles(context, shape, figures, view.links, found, picked, shown);
    drawLinks(context, shape, view.links, found.places, shown);
    drawNodes(context, shape, figures, found.places, picked, width);
  };
  return html`<div class="picture" tabindex="0" role="group" aria-label="The fabric; arrow keys choose a node" aria-describedby="chosen" onKeyDown=${keys}>
      <${Canvas} label=${label} height=${(width) => placed(width).height} draw=${draw} onClick=${(event) => setPicked(find(event))} />
    </div>
    <div class="legend" aria-hidden="true">load <i class="load l0"></i>idle <i class="load l2"></i>10% <i class="load l3"></i>30% <i class="load l4"></i>60% <i class="load l5"></i>80% <i class="dot halo"></i>marks <i class="load dead"></i>down</div>
    <${Chosen} shape=${shape} view=${view} picked=${picked} figures=${figures} />`;
};
