// The libraries of the page, as one module: `make vendor` bundles them.
export { render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { html } from "htm/preact";
export { default as uPlot } from "uplot";
