// The page of `netsum dashboard`: follows the stream of overviews, and draws the panel that the address names.

import { html, render } from "./vendor.js";
import { Job } from "./job.js";
import { Overview } from "./overview.js";
import { chosen, next, onTheme } from "./theme.js";
import { duration } from "./format.js";

const state = { view: null, shape: null, lost: "" };
const root = document.getElementById("page");

const route = () => {
  const found = /^#\/job\/(\d+)$/.exec(location.hash);
  return found ? Number(found[1]) : null;
};

const Header = ({ view }) => html`<header>
  <a class="name" href="#/">netsum</a>
  ${view.fabric && html`<span><b>${view.fabric.name}</b> <span class="soft small">controller ${view.fabric.address} ${view.fabric.version}, up ${duration(view.fabric.uptime_s)}</span></span>`}
  <span class="grow"></span>
  <button onClick=${next} aria-label=${`theme: ${chosen()}`}>${{ auto: "◐ auto", light: "○ light", dark: "● dark" }[chosen()]}</button>
</header>`;

const Trouble = ({ words }) => words && html`<div class="pad-banner"><p class="banner" role="alert">${words}</p></div>`;

const Page = ({ view, shape, lost }) => {
  if (!view || !shape) return html`<p class="pad soft" role="status">${lost || "Asking the controller…"}</p>`;
  const number = route();
  return html`<${Header} view=${view} />
    <${Trouble} words=${lost || view.error || view.fabric?.problem} />
    ${number == null ? html`<${Overview} shape=${shape} view=${view} />` : html`<${Job} key=${number} number=${number} shape=${shape} view=${view} />`}`;
};

const draw = () => {
  render(html`<${Page} ...${state} />`, root);
  document.title = state.view?.fabric ? `${state.view.fabric.name} – netsum` : "netsum";
};

/** Takes an overview; the time it takes until everything is drawn is a measure, for tests and for profilers. */
const take = async (message) => {
  const begin = performance.now();
  const view = JSON.parse(message);
  if (view.topology !== state.shape?.id) {
    const answer = await fetch("/api/topology");
    const shape = await answer.json();
    // A later overview of another shape follows.
    if (shape.id !== view.topology) return;
    state.shape = shape;
  }
  Object.assign(state, { view, lost: "" });
  draw();
  performance.clearMeasures("netsum-update");
  performance.measure("netsum-update", { start: begin, end: performance.now() });
};

const stream = new EventSource("/api/stream");
stream.onmessage = (event) => take(event.data);
stream.onerror = () => {
  state.lost = "The command netsum dashboard does not answer. Start it again and open the address that it prints.";
  draw();
};
addEventListener("hashchange", () => {
  draw();
  scrollTo(0, 0);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && route() != null) location.hash = "#/";
});
onTheme(draw);
draw();
