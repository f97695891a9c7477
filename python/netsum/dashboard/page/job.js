// A job's own page.

import { html, useEffect, useState } from "./vendor.js";
import { Chart } from "./chart.js";
import { Fabric } from "./fabric.js";
import { bytes, clock, duration, percent, plural, rate } from "./format.js";
import { Level, Table } from "./overview.js";
import { Timeline } from "./timeline.js";

const WORDS = { bad: "Problem", warn: "Attention", info: "Note", good: "Well" };

const Reasons = ({ job }) => html`<section class="two" id="why"><h2>Why is this job slow?</h2>
  ${job.reasons.length ? html`<ul class="reasons">${job.reasons.map((each) => html`<li class=${each.level}><b>${WORDS[each.level]}.</b> ${each.text} ${each.help && html`<span class="soft">${each.help}</span>`}</li>`)}</ul>` : html`<p class="soft">${["ended", "abandoned"].includes(job.state) ? "It is over." : "Nothing is known yet."}</p>`}</section>`;

const Cards = ({ job }) => {
  const cards = [
    [duration(job.step_s), job.step_operations ? `step of ${plural(job.step_operations, "sum")}, ${bytes(job.step_bytes)}` : "step: calls do not repeat"],
    [percent(job.overlap), "of communication hidden by computing, at least"],
    [duration(job.exposed_s), "exposed communication per step"],
    [rate(job.sum_bps), "sent per rank"],
    [bytes(job.saved_bytes), job.saved_share > 0 ? `saved on hosts' links: ${percent(job.saved_share)} of a ring` : "saved against a ring"],
    [job.window ? `${job.window} of ${job.window_max}` : "–", `window, fragments; round trip ${duration(job.rtt_us / 1e6)}`],
    [String(job.recoveries), job.recoveries ? `pauses, ${duration(job.paused_s)} in all` : "pauses"],
    [percent(job.lost), `of packets lost; ${percent(job.marked)} marked`],
  ];
  return html`<div class="cards">${cards.map(([figure, words]) => html`<div class="card"><b>${figure}</b><span>${words}</span></div>`)}</div>`;
};

const Pauses = ({ pauses }) => html`<section id="pauses"><h2>Pauses and recoveries</h2>${pauses.length ? html`<ul class="events" tabindex="0" aria-label="pauses, newest first">${[...pauses].reverse().map((pause) => html`<li><time>${clock(pause.at_unix_s)}</time><span><b>${duration(pause.seconds)}</b> ${pause.what}</span></li>`)}</ul>` : html`<p class="soft">None so far.</p>`}</section>`;

const Ranks = ({ job }) => html`<section class="two" id="ranks"><h2>Ranks</h2><${Table} label="ranks" few=${32} rows=${job.ranks.map((rank) => ({ ...rank, key: rank.rank }))} columns=${[
  ["rank", (rank) => rank.rank, (rank) => html`<${Level} level=${{ connected: "good", lost: "bad", away: "warn" }[rank.state] ?? "info"} />${rank.rank}`, "left"],
  ["host", (rank) => rank.host, (rank) => rank.host, "left"],
  ["process", null, (rank) => rank.pid || "–"],
  ["state", (rank) => rank.state, (rank) => rank.state],
  ["step", (rank) => rank.step_s, (rank) => duration(rank.step_s)],
  ["waits", (rank) => rank.exposed_s, (rank) => duration(rank.exposed_s)],
  ["window", (rank) => rank.window, (rank) => rank.window ?? "–"],
  ["round trip", (rank) => rank.rtt_us, (rank) => (rank.rtt_us ? duration(rank.rtt_us / 1e6) : "–")],
  ["resent", (rank) => rank.resent, (rank) => rank.resent.toLocaleString("en")],
  ["marks", (rank) => rank.marks, (rank) => rank.marks.toLocaleString("en")],
]} /></section>`;

const Trees = ({ job }) => html`<section id="trees"><h2>Trees <span class="soft">${job.protocol}</span></h2>${job.trees_of.length ? html`<${Table} label="trees" stacked=${false} rows=${job.trees_of.map((tree) => ({ ...tree, key: tree.tree }))} columns=${[
  ["tree", null, (tree) => `${tree.tree}: ${tree.root}`, "left"],
  ["window", null, (tree) => tree.window ?? "–"],
  ["resent", null, (tree) => tree.resent],
  ["marks", null, (tree) => tree.marks],
]} />` : html`<p class="soft">The hosts add${job.reason ? `: ${job.reason}` : ""}.</p>`}
  ${job.links_of.length ? html`<h3 class="small">Fullest links of its trees</h3><p class="small">${job.links_of.slice(0, 6).map((link) => html`<span class="link-figure">${link.source} → ${link.target} ${percent(link.load)}</span> `)}</p>` : ""}</section>`;

const onTrees = (job, shape) => {
  const name = (at) => shape.nodes[at][0];
  const hosts = Object.fromEntries(job.ranks.map((rank) => [rank.rank, rank.host]));
  const members = new Set([...job.trees_of.flatMap((tree) => tree.switches), ...Object.values(hosts)]);
  return new Set(shape.links.flatMap(([a, b], at) => (members.has(name(a)) && members.has(name(b)) ? [at] : [])));
};

/** Its figures are fetched with each overview. */
export const Job = ({ number, shape, view }) => {
  const [job, setJob] = useState(null);
  const [gone, setGone] = useState("");
  useEffect(() => {
    let current = true;
    fetch(`/api/jobs/${number}`)
      .then(async (answer) => {
        const found = answer.ok ? await answer.json() : null;
        if (!current) return;
        setGone(found ? "" : `There is no job ${number}.`);
        if (found) setJob(found);
      })
      .catch(() => current && setGone("The command netsum dashboard does not answer."));
    return () => {
      current = false;
    };
  }, [number, view.number]);
  if (!job || job.job !== number) return html`<main><section class="all"><p><a href="#/">← fabric</a></p><p class="soft">${gone || "Loading…"}</p></section></main>`;
  const times = job.history.map(([at]) => at);
  const column = (at, scale = 1) => job.history.map((point) => (point[at] == null ? null : point[at] * scale));
  return html`<main>
    <div class="all"><p class="small"><a href="#/">← fabric</a></p><h1>Job ${job.job} ${job.name}</h1>
      <p class="soft">${job.state}, ${plural(job.size, "rank")}, tenant ${job.tenant}, ${job.protocol || "no protocol yet"}, epoch ${job.epoch}, since ${clock(job.created_unix_s)}${job.choice ? `; ${job.choice}` : ""}</p></div>
    <${Cards} job=${job} />
    <${Reasons} job=${job} />
    <${Pauses} pauses=${job.pauses} />
    <section class="all" id="timeline"><h2>Operations <a class="small" href=${`/api/jobs/${job.job}/trace.json`} download>trace file for Perfetto</a></h2>
      <${Timeline} operations=${job.operations} pauses=${job.pauses} step=${job.step_s} now=${view.at_unix_s} /></section>
    ${times.length > 1 && html`<section class="all" id="curves"><div class="curves">
      <${Chart} title="Step, and exposed communication" data=${[times, column(1), column(2)]} axis=${(value) => duration(value || 0)} series=${[{ name: "step", colour: 0 }, { name: "exposed", colour: 1 }]} />
      <${Chart} title="Sent per rank" data=${[times, column(3)]} axis=${rate} series=${[{ name: "sent", colour: 2 }]} />
    </div></section>`}
    <${Ranks} job=${job} />
    <${Trees} job=${job} />
    <section class="all"><h2>Its links</h2><${Fabric} shape=${shape} view=${view} shown=${onTrees(job, shape)} /></section>
  </main>`;
};
