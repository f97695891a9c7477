// The first page: fabric, events, jobs, stragglers, tenants, switches.

import { html, useState } from "./vendor.js";
import { DOWN, Fabric, UP } from "./fabric.js";
import { bytes, clock, duration, memory, percent, plural, rate } from "./format.js";

const OVER = new Set(["ended", "abandoned"]);
const FEW = 25;
const ROWS = 1024;

/** A table that its headings sort; a column is [heading, key for sorting or null, cell]. */
const Table = ({ columns, rows, label, few = FEW, stacked = true }) => {
  const [most, setMost] = useState(few);
  const [by, setBy] = useState(null);
  const [upward, setUpward] = useState(false);
  const key = by == null ? null : columns[by][1];
  const sorted = key
    ? [...rows].sort((one, other) => {
        const [a, b] = [key(one) ?? -Infinity, key(other) ?? -Infinity];
        return (a < b ? -1 : a > b ? 1 : 0) * (upward ? 1 : -1);
      })
    : rows;
  const choose = (at) => (by === at ? setUpward(!upward) : setBy(at));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class=${stacked ? "stacked" : ""}>
    <thead><tr>${columns.map(([heading, sorts, , left], at) => html`<th scope="col" class=${left ? "left" : ""}
      aria-sort=${by === at ? (upward ? "ascending" : "descending") : undefined}>${sorts ? html`<button onClick=${() => choose(at)}>${heading}${by === at ? (upward ? " ↑" : " ↓") : ""}</button>` : heading}</th>`)}</tr></thead>
    <tbody>${sorted.slice(0, most).map((row) => html`<tr key=${row.key}>${columns.map(([heading, , cell, left], at) => html`<td data-name=${at ? heading : undefined} class=${left ?? ""}>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>${sorted.length > most ? html`<p class="soft small">and ${(sorted.length - most).toLocaleString("en")} more ${most < ROWS ? html`<button onClick=${() => setMost(ROWS)}>show them</button>` : ": filter for them"}</p>` : ""}`;
};

const Filter = ({ value, set, what }) => html`<input type="search" placeholder=${`filter ${what}`} aria-label=${`filter ${what}`} value=${value} onInput=${(event) => set(event.target.value)} />`;

export const Level = ({ level }) => html`<i class=${`dot ${level}`} role="img" aria-label=${{ good: "well", info: "note", warn: "attention", bad: "bad" }[level]}></i>`;

export const JOB_COLUMNS = [
  ["job", (job) => job.job, (job) => html`<${Level} level=${OVER.has(job.state) ? "info" : job.level} /><a href=${`#/job/${job.job}`}>${job.job} ${job.name}</a>${job.state === "running" ? "" : ` (${job.state})`}`, "left"],
  ["tenant", (job) => job.tenant, (job) => job.tenant],
  ["ranks", (job) => job.size, (job) => (job.connected < job.size && !OVER.has(job.state) ? html`<span class="warn">${job.connected} of ${job.size}</span>` : job.size)],
  ["step", (job) => job.step_s, (job) => duration(job.step_s)],
  ["overlap", (job) => job.overlap, (job) => percent(job.overlap)],
  ["sends", (job) => job.sum_bps, (job) => (OVER.has(job.state) ? "–" : rate(job.sum_bps))],
  ["saved", (job) => job.saved_bytes, (job) => (OVER.has(job.state) && !job.saved_bytes ? "–" : bytes(job.saved_bytes))],
  ["trees", (job) => job.trees, (job) => job.trees || "hosts"],
  ["window", (job) => job.window, (job) => job.window || "–"],
  ["pauses", (job) => job.recoveries, (job) => (job.recoveries ? `${job.recoveries}, ${duration(job.paused_s)}` : "0")],
  ["why", null, (job) => (OVER.has(job.state) ? "" : job.says), "left says"],
];

const Jobs = ({ jobs }) => {
  const [words, setWords] = useState("");
  const live = jobs.filter((job) => !OVER.has(job.state));
  const all = [...live, ...jobs.filter((job) => OVER.has(job.state)).reverse()];
  const wanted = all.filter((job) => `${job.job} ${job.name} ${job.tenant} ${job.state}`.includes(words)).map((job) => ({ ...job, key: job.job }));
  return html`<section class="all" id="jobs"><h2>Jobs <span class="soft">${live.length} live</span>${jobs.length > 8 && html`<${Filter} value=${words} set=${setWords} what="jobs" />`}</h2>
    ${wanted.length ? html`<${Table} columns=${JOB_COLUMNS} rows=${wanted} label="jobs" />
      <p class="soft small">step: median of the last ones · overlap: share of communication that computing hides, at least · sends: per rank · saved: bytes on the links of hosts against a ring</p>` : html`<p class="soft">No jobs${words ? " of that name" : ". Start one by netsum run"}.</p>`}</section>`;
};

const Stragglers = ({ jobs }) => {
  const late = jobs.filter((job) => job.straggler).sort((one, other) => other.straggler.late_s / other.step_s - one.straggler.late_s / one.step_s);
  const byRanks = late.map(({ job, name, straggler, step_s }) => [job, name, `rank ${straggler.rank} (${straggler.host}, process ${straggler.pid}) is ${duration(straggler.late_s)} late in each step, ${percent(straggler.late_s / step_s)}`]);
  const bySwitches = jobs.flatMap(({ job, name, metered }) => metered.map((text) => [job, name, text]));
  const all = [...byRanks, ...bySwitches];
  return html`<section id="stragglers"><h2>Stragglers</h2>${all.length ? html`<ul class="events">${all.slice(0, 30).map(([job, name, text]) => html`<li key=${`${job} ${text}`}><${Level} level="warn" /><span><a href=${`#/job/${job}`}>job ${job} ${name}</a>: ${text}</span></li>`)}</ul>` : html`<p class="soft">No rank, link or rack makes the others wait for more than 3% of the time.</p>`}</section>`;
};

const Tenants = ({ tenants }) => html`<section id="tenants"><h2>Tenants</h2>${tenants.length ? html`<${Table} label="tenants" stacked=${false} rows=${tenants.map((each) => ({ ...each, key: each.tenant }))} columns=${[
  ["tenant", null, (each) => each.tenant, "left"],
  ["jobs", null, (each) => each.jobs],
  ["sends", null, (each) => rate(each.bps)],
  ["share", null, (each) => html`${percent(each.share)} <span class="bar" aria-hidden="true"><i style=${{ width: `${100 * each.share}%` }}></i></span>`],
  ["cut", null, (each) => (each.dropped ? html`<span class="warn">${each.dropped.toLocaleString("en")}</span>` : "0")],
]} />` : html`<p class="soft">No tenant has a job.</p>`}</section>`;

const Events = ({ events }) => html`<section id="events"><h2>Events</h2>${events.length ? html`<ul class="events" tabindex="0" aria-label="events, newest first">${events.map((event) => html`<li key=${event.id}><${Level} level=${event.level} /><time>${clock(event.at_unix_s)}</time><span>${event.text}</span></li>`)}</ul>` : html`<p class="soft">Nothing has happened since this page's command began.</p>`}</section>`;

const Switches = ({ shape, view }) => {
  const [words, setWords] = useState("");
  const all = shape.switches.map(([name, role, host], at) => ({ key: name, name, role, host, figure: view.switches[at] ?? [1, 0, 0, 0, 0, 0, 0, 0] }));
  const down = all.filter((each) => each.figure[0] === DOWN);
  const order = [...down, ...all.filter((each) => each.figure[0] !== DOWN)];
  const rows = order.filter((each) => `${each.name} ${each.role} ${each.host}`.includes(words));
  return html`<section id="switches"><h2>Switches and servers ${down.length ? html`<span class="bad">${down.length} down</span>` : html`<span class="soft">all up</span>`}${all.length > 8 && html`<${Filter} value=${words} set=${setWords} what="switches" />`}</h2>
    <${Table} rows=${rows} label="switches" few=${12} stacked=${false} columns=${[
      ["name", (each) => each.name, (each) => html`<${Level} level=${["good", "warn", "bad"][each.figure[0]]} />${each.name}${each.figure[0] === UP ? "" : html` <b class=${each.figure[0] === DOWN ? "bad" : "warn"}>${each.figure[0] === DOWN ? "down" : "expected"}</b>`}`, "left"],
      ["leased", (each) => each.figure[3], (each) => html`${memory(each.figure[3])} <span class="soft">of ${memory(each.figure[4])}</span>`],
      ["marks", (each) => each.figure[6], (each) => percent(each.figure[6])],
      ["drops/s", (each) => each.figure[5], (each) => each.figure[5]],
    ]} /></section>`;
};

export const Overview = ({ shape, view }) => html`<main>
  <section class="two" id="fabric"><h2>Fabric <span class="soft">${plural(shape.nodes.filter(([, kind]) => kind === "switch").length, "switch")}, ${plural(shape.nodes.filter(([, kind]) => kind === "host").length, "host")}</span></h2><${Fabric} shape=${shape} view=${view} /></section>
  <${Events} events=${view.events} />
  <${Jobs} jobs=${view.jobs} />
  <${Stragglers} jobs=${view.jobs.filter((job) => !OVER.has(job.state))} />
  <${Tenants} tenants=${view.tenants} />
  <${Switches} shape=${shape} view=${view} />
</main>`;

export { Table };
