"""The style sheet of the report: one column of text and figures, light, dark, phone and print.

Colours are named once per scheme; charts use the same names through classes. Figures carry a wide
and a narrow drawing and show the one that fits their column (container queries; where a browser has
none, the wide one).
"""

LIGHT = """
--paper:#fcfcfa; --raised:#fff; --ink:#1b1d22; --muted:#666a73; --rule:#e3e2dc; --grid:#ebeae5;
--a:#2a6592; --a-soft:#c9dbe8; --b:#b9622b; --b-soft:#efd6c5; --r1:#8a5a9e; --r2:#7d7f3a;
--warn:#8a4b08; --warn-paper:#fdf4e3; --warn-rule:#ecd3a5; --good:#2c6e49; --mark:#fbe3b3; --code:#f3f2ed; --on:#fff;
"""  # noqa: E501
DARK = """
--paper:#15171b; --raised:#1c1f24; --ink:#e6e6e3; --muted:#9b9fa8; --rule:#30343b; --grid:#272b31;
--a:#6aa9d8; --a-soft:#2c4356; --b:#e0935c; --b-soft:#533a29; --r1:#c095d4; --r2:#b9bb6a;
--warn:#f0c27b; --warn-paper:#2b241a; --warn-rule:#57452a; --good:#84c9a0; --mark:#6b4f1c; --code:#22262c; --on:#10141a;
"""  # noqa: E501

STYLE = (
    f"""
:root {{ {LIGHT} color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
"""
    + """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1.5rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; -webkit-font-smoothing: antialiased; }
main { max-width: 61rem; margin: 0 auto; padding: 3.5rem 2rem 6rem; }
nav { position: fixed; top: 0; bottom: 0; left: 0; width: 13rem; padding: 3.7rem 1rem 2rem 2rem; overflow-y: auto;
  font-size: .82rem; }
nav ol { list-style: none; margin: 0; padding: 0; border-left: 1px solid var(--rule); }
nav a { display: block; padding: .22rem 0 .22rem .9rem; margin-left: -1px; color: var(--muted); text-decoration: none;
  border-left: 1px solid transparent; }
nav a:hover, nav a:focus-visible { color: var(--ink); border-left-color: var(--a); }
@media (min-width: 1180px) { body { padding-left: 13rem; } }
@media (max-width: 1179px) {
  nav { position: static; width: auto; padding: 1.2rem 2rem 0; max-width: 61rem; margin: 0 auto; }
  nav ol { border: 0; display: flex; flex-wrap: wrap; gap: 0 1rem; }
  nav a { padding: .2rem 0; margin: 0; border: 0; }
  main { padding-top: 2rem; }
}
a { color: var(--a); text-underline-offset: .15em; }
h1, h2, h3 { line-height: 1.2; letter-spacing: -.012em; text-wrap: balance; margin: 0; }
h1 { font-size: clamp(1.75rem, 1.2rem + 2.2vw, 2.6rem); font-weight: 680; overflow-wrap: anywhere; }
h2 { font-size: 1.5rem; font-weight: 660; }
h3 { font-size: .95rem; font-weight: 640; letter-spacing: 0; margin-bottom: .55rem; }
.kicker { margin: 0 0 .5rem; font-size: .76rem; letter-spacing: .09em; text-transform: uppercase; color: var(--muted); }
.subtitle { font-size: 1.12rem; color: var(--muted); max-width: 46rem; margin: .8rem 0 2rem; text-wrap: pretty;
  overflow-wrap: anywhere; }
section { border-top: 1px solid var(--rule); margin-top: 3.6rem; padding-top: 2rem; }
.finding { font-size: 1.06rem; max-width: 46rem; margin: .7rem 0 1.8rem; text-wrap: pretty; overflow-wrap: anywhere; }
figure, .tabled { margin: 0 0 2.4rem; container-type: inline-size; min-width: 0; }
figcaption, .note { font-size: .84rem; line-height: 1.45; color: var(--muted); max-width: 48rem; margin: .6rem 0 0;
  text-wrap: pretty; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0 2.6rem;
  align-items: start; }
.absent { font-size: .9rem; color: var(--muted); border: 1px dashed var(--rule); border-radius: 6px; padding: .9rem 1rem;
  margin: 0; }

.cards { display: flex; flex-wrap: wrap; gap: 1px; margin: 0 0 1.6rem;
  background: var(--rule); border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
.cards > div { flex: 1 1 10.4rem; background: var(--raised); padding: 1rem 1.05rem 1.05rem; min-width: 0;
  display: flex; flex-direction: column; }
@media (min-width: 1000px) {
  .cards { display: grid; grid-template-columns: 1.75fr; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); }
}
.cards dt { font-size: .8rem; color: var(--muted); }
.cards dd { margin: 0; }
.cards b { display: block; font-size: 1.85rem; line-height: 1.2; font-weight: 640; letter-spacing: -.02em;
  margin: .15rem 0 .1rem; }
.cards b.quiet { font-size: 1.1rem; line-height: 1.3; letter-spacing: 0; padding: .35rem 0 .3rem; color: var(--muted); }
.cards .detail, .cards .detail span { display: block; font-size: .84rem; } .cards .detail span { font-size: inherit; }
.cards .meaning { font-size: .78rem; line-height: 1.4; color: var(--muted); margin-top: .5rem; text-wrap: pretty; }
.notices { background: var(--warn-paper); border: 1px solid var(--warn-rule); border-radius: 8px; padding: 1rem 1.2rem; }
.notices h2 { font-size: .95rem; color: var(--warn); letter-spacing: 0; }
.notices ul { margin: .5rem 0 0; padding-left: 1.1rem; font-size: .92rem; }
.notices li { margin: .25rem 0; overflow-wrap: anywhere; }
.all-clear { color: var(--good); font-size: .92rem; margin: 0; }

.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--a-soft); outline-offset: 3px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.4; }
th, td { padding: .34rem .8rem; border-bottom: 1px solid var(--rule); vertical-align: baseline; text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 560; color: var(--muted); font-size: .79rem; vertical-align: bottom; border-bottom-color: var(--muted); }
.n { text-align: right; white-space: nowrap; }
td.t { overflow-wrap: anywhere; max-width: 26rem; }
.inline-bar { display: inline-block; width: 4.5rem; height: .6rem; margin-right: .6rem; border-radius: 1.5px;
  background: linear-gradient(to right, var(--a) var(--w), transparent 0); }
.amount { display: inline-block; min-width: 2.9em; }
.measure { min-width: 9rem; } .measure span { display: block; color: var(--muted); font-size: .79rem; }
.index { display: inline-block; min-width: 1.9em; color: var(--muted); }
code, .key { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .86em;
  overflow-wrap: anywhere; }
.hash { white-space: nowrap; overflow-wrap: normal; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: .9rem 2rem; margin: 0; }
.facts dt { font-size: .8rem; color: var(--muted); }
.facts dd { margin: 0; }
.facts b { display: block; font-weight: 620; font-size: 1.1rem; overflow-wrap: anywhere; }
.facts span { display: block; font-size: .79rem; line-height: 1.4; color: var(--muted); text-wrap: pretty; }
ul.limits { max-width: 46rem; padding-left: 1.1rem; margin: 0 0 2rem; }
ul.limits li { margin: .35rem 0; text-wrap: pretty; overflow-wrap: anywhere; }
.ledger { margin: 0 0 2.4rem; max-width: 52rem; }
.ledger > div { display: grid; grid-template-columns: minmax(8rem, 11rem) 1fr; gap: 0 1.2rem; padding: .5rem 0;
  border-bottom: 1px solid var(--rule); }
.ledger dt { color: var(--muted); font-size: .87rem; padding-top: .08rem; } .ledger dd { margin: 0; overflow-wrap: anywhere; }
.ledger span { display: block; font-size: .8rem; color: var(--muted); }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; margin: 0; padding: 0; }
.chips li { background: var(--code); border-radius: 4px; padding: .1rem .45rem; max-width: 100%; overflow-wrap: anywhere; }
details { border-top: 1px solid var(--rule); padding: .55rem 0; }
details:not(:has(+ details)) { border-bottom: 1px solid var(--rule); margin-bottom: 2.2rem; }
summary { cursor: pointer; font-size: .9rem; overflow-wrap: anywhere; }
summary:hover { color: var(--a); }
.aside { color: var(--muted); font-size: .84rem; margin-left: .35rem; }
figure + details { margin-top: -1.1rem; } details + :not(details) { margin-top: 2.2rem; } .note + .tabled { margin-top: 1.3rem; }
details[open] > summary { margin-bottom: .8rem; }

.excerpts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: 1rem;
  margin-bottom: .9rem; }
.excerpts > div, .sample { background: var(--raised); border: 1px solid var(--rule); border-radius: 6px; padding: .9rem 1rem;
  min-width: 0; }
.excerpts h4 { margin: 0 0 .4rem; font-size: .8rem; font-weight: 560; color: var(--muted); }
.excerpts p, .sample p { margin: 0; font-size: .92rem; white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: var(--mark); color: inherit; border-radius: 2px; padding: 0 .08em; }
.sample { margin-bottom: .9rem; }
.sample b { font-weight: 640; color: var(--a); }

svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
.narrow { display: none; }
@container (max-width: 560px) { .wide { display: none; } .narrow { display: block; } }
svg text { fill: var(--ink); unicode-bidi: isolate; }
/* Names and values stay readable where a line runs behind them. */
svg text.label, svg text.value { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
svg text.muted { fill: var(--muted); }
svg text.on { fill: var(--on); }
svg .axis { stroke: var(--muted); stroke-width: 1; opacity: .55; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .a { fill: var(--a); stroke: var(--a); } svg .b { fill: var(--b); stroke: var(--b); }
svg rect { stroke: none !important; }
svg .pale.a { fill: var(--a-soft); } svg .pale.b { fill: var(--b-soft); }
svg .self { fill: var(--grid); } svg .heat { fill: var(--a); }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .interval { stroke-width: 1.6; } svg .whisker { stroke: var(--ink); stroke-width: 1.2; opacity: .65; }
svg .dot { stroke: var(--paper); stroke-width: 1.2; }
svg .dot.small { fill: var(--paper); stroke: var(--a); stroke-width: 1.6; }
svg .reference { stroke-width: 1.4; stroke-dasharray: 5 4; } svg .r1 { stroke: var(--r1); } svg .r2 { stroke: var(--r2);
  stroke-dasharray: 2 3; }
svg .target { fill: transparent; stroke: none; } svg g:hover > rect.target { fill: var(--ink); fill-opacity: .045; }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.3rem; margin: 0 0 .55rem; font-size: .82rem; color: var(--muted); }
.legend span { display: inline-flex; align-items: center; gap: .45rem; }
.legend i { width: 1.1rem; height: .62rem; border-radius: 1.5px; background: var(--a); flex: none; }
.legend i.pale { background: var(--a-soft); } .legend i.b { background: var(--b); }
.legend i.line { height: 2px; } .legend i.dot { width: .6rem; border-radius: 50%; background: var(--b); }
.legend i.small { background: none; border: 1.6px solid var(--a); }
.legend i.point { width: .6rem; border-radius: 50%; }
.legend i.r1 { height: 0; background: none; border-top: 2px dashed var(--r1); border-radius: 0; }
.legend i.r2 { height: 0; background: none; border-top: 2px dotted var(--r2); border-radius: 0; }

@media (max-width: 640px) {
  main { padding: 1.4rem 1rem 4rem; } nav { padding: 1rem 1rem 0; }
  section { margin-top: 2.6rem; padding-top: 1.5rem; }
  .cards { display: grid; grid-template-columns: 1fr 1fr; }
  .cards > div { padding: .8rem; } .cards > div:first-child { grid-column: 1 / -1; }
  .cards b { font-size: 1.5rem; } th, td { padding: .34rem .55rem; } td.t { min-width: 5rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .9rem 1.2rem; } .ledger > div { grid-template-columns: 1fr; }
  .inline-bar { display: none; }
}
@media print {
  :root { """  # noqa: E501
    + LIGHT
    + """ --paper:#fff; color-scheme: light; }
  body { padding: 0; font-size: 10.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; } nav { display: none; }
  main { max-width: none; padding: 0; } section { margin-top: 1.6rem; padding-top: 1rem; }
  figure, .cards, .excerpts, .sample, tr, .notices { break-inside: avoid; } h2, h3, .finding { break-after: avoid; }
  .scroll { overflow: visible; } details > summary { list-style: none; } details::details-content { content-visibility: visible; }
}
"""  # noqa: E501
)
