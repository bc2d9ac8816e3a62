// Paths of dots along the edges of a picture, from box to box, through the ports of frames.
// Each path is computed once by breadth-first search, and cached as points at equal distances.

const POINTS = 33;
const MAX_HOPS = 9;

function neighbors(edges, isBothWays) {
  const adjacency = new Map();
  const add = (from, to, at, turned) => {
    if (!adjacency.has(from)) adjacency.set(from, []);
    adjacency.get(from).push({ to, at, turned });
  };
  edges.forEach(({ source, target }, at) => {
    add(source, target, at, false);
    // Dots never move back to an input.
    if (isBothWays && !source.startsWith("in.")) add(target, source, at, true);
  });
  return adjacency;
}

/** Shortest path between two boxes in hops. Null: none within MAX_HOPS. */
function shortest(graph, from, to) {
  const before = new Map([[from, null]]);
  let edge = [from];
  for (let step = 0; step < MAX_HOPS && edge.length; step++) {
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
    const offset = Math.min(along - passed, lengths[hop]);
    const point = paths[hops[hop].at].getPointAtLength(hops[hop].turned ? lengths[hop] - offset : offset);
    points[at * 2] = point.x;
    points[at * 2 + 1] = point.y;
  }
  return points;
}

/** Returns `path(from, to)`: points in picture units, or null for a straight line. */
export function edgePaths(picture, svg) {
  const paths = [];
  for (const path of svg.querySelectorAll("[data-edge]")) paths[Number(path.dataset.edge)] = path;
  const [forward, undirected] = [neighbors(picture.edges, false), neighbors(picture.edges, true)];
  const known = new Map();
  return (from, to) => {
    const key = `${from} ${to}`;
    if (!known.has(key)) {
      // The last op of a loop often has no outgoing edge: going back along an edge is better than a straight line.
      const hops = shortest(forward, from, to) ?? shortest(undirected, from, to);
      known.set(key, hops && measured(hops, paths));
    }
    return known.get(key);
  };
}
