"""Stylesheet of the HTML report, for light and dark mode."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --ink: #1f2328; --soft: #656d76; --grid: #e4e8ec; --card: #f6f8fa; --play: #9dc3f5; --underrun: #d1242f;
  --t0: #2f6fde; --t1: #d9730d; --t2: #2e8b57; --t3: #8a4fc7; --t4: #7d8790;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #262c34; --card: #151b23; --play: #234d80;
    --underrun: #ff6b62;
    --t0: #6ea8ff; --t1: #f0883e; --t2: #57c084; --t3: #b98cf0; --t4: #8b949e;
  }
}
body {
  background: var(--page); color: var(--ink); max-width: 1180px; margin: 32px auto; padding: 0 20px;
  font: 15px/1.5 ui-sans-serif, system-ui, 'Segoe UI', Roboto, Arial, sans-serif;
}
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 0; }
p { margin: 4px 0 12px; color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px; margin: 0 0 16px; }
.card { background: var(--card); border-radius: 10px; padding: 16px; margin: 0 0 16px; }
.plots .card { margin: 0; }
.wide { overflow-x: auto; }
.warn { color: var(--underrun); }
details.card { margin: 0 0 8px; padding: 10px 16px; }
summary { cursor: pointer; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-weight: 600; font-size: 13.5px; }
svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--grid); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.key { stroke-width: 3; }
.t0 { stroke: var(--t0); --t: var(--t0); }
.t1 { stroke: var(--t1); --t: var(--t1); }
.t2 { stroke: var(--t2); --t: var(--t2); }
.t3 { stroke: var(--t3); --t: var(--t3); }
.t4 { stroke: var(--t4); --t: var(--t4); }
.dot { stroke: none; fill: var(--t); }
.play { fill: var(--play); }
.underrun { fill: var(--underrun); }
.wait { stroke: var(--soft); stroke-dasharray: 2 2; }
.arrival { stroke: var(--ink); stroke-width: .8; opacity: .65; }
.lost { stroke: var(--underrun); fill: none; stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
.text { text-align: left; white-space: normal; }
.swatch { display: inline-block; width: 12px; height: 10px; border-radius: 2px; margin: 0 5px 0 14px; }
.dashed { border-top: 2px dashed var(--soft); border-radius: 0; height: 2px; vertical-align: middle; }
"""
