// The ways that dots take through a picture: along its edges, from box to box, through the ports of frames.
// Each way is looked for and measured once, and kept as points at equal distances.

const POINTS = 33;
const FAR = 9;

function neighbours(edges, isBothWays) {
  const found = new Map();
  const add = (from, to, at, turned) => {
    if (!found.has(from)) found.set(from, []);
    found.get(from).push({ to, at, turned });
  };
  edges.forEach(({ source, target }, at) => {
    add(source, target, at, false);
    // Nobody goes back to where a walk began.
    if (isBothWays && !source.startsWith("in.")) add(target, source, at, true);
  });
  return found;
}

/** The fewest edges from one box to another, or null. */
function shortest(graph, from, to) {
  const before = new Map([[from, null]]);
  let edge = [from];
  for (let step = 0; step < FAR && edge.length; step++) {
    const next = [];
    for (const id of edge) {
      for (const hop of graph.get(id) ?? []) {
        if (before.has(hop.to)) continue;
        before.set(hop.to, { id, hop });
        if (hop.to === to) return traced(before, to);
        next.push(hop.to);
      }
    }
    edge = next;
  }
  return null;
}

function traced(before, to) {
  const hops = [];
  for (let at = before.get(to); at; at = before.get(at.id)) hops.unshift(at.hop);
  return hops;
}

/** Points at equal distances along some edges, as x, y, x, y, … */
function measured(hops, paths) {
  const lengths = hops.map(({ at }) => paths[at].getTotalLength());
  const whole = lengths.reduce((sum, length) => sum + length, 0);
  const points = new Float32Array(POINTS * 2);
  let [hop, passed] = [0, 0];
  for (let at = 0; at < POINTS; at++) {
    const along = (whole * at) / (POINTS - 1);
    while (hop < hops.length - 1 && along > passed + lengths[hop]) passed += lengths[hop++];
    const here = Math.min(along - passed, lengths[hop]);
    const point = paths[hops[hop].at].getPointAtLength(hops[hop].turned ? lengths[hop] - here : here);
    points[at * 2] = point.x;
    points[at * 2 + 1] = point.y;
  }
  return points;
}

/** `way(from, to)` gives points in the picture's units, or null where only a straight line leads. */
export function edgePaths(picture, svg) {
  const paths = [];
  for (const path of svg.querySelectorAll("[data-edge]")) paths[Number(path.dataset.edge)] = path;
  const [onward, anyway] = [neighbours(picture.edges, false), neighbours(picture.edges, true)];
  const known = new Map();
  return (from, to) => {
    const key = `${from} ${to}`;
    if (!known.has(key)) {
      // A loop's last op often leads nowhere; back along the edge it came by is nearer than straight across.
      const hops = shortest(onward, from, to) ?? shortest(anyway, from, to);
      known.set(key, hops && measured(hops, paths));
    }
    return known.get(key);
  };
}
