// Where each node's tile stands: groups as blocks that flow like words. Pure.

export const SIZES = [5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 34, 42, 52, 64, 84];
const LARGEST_FITTED = SIZES.indexOf(64);
export const LABEL = 15;
export const NAMED_FROM = 52; // pixels of a tile that also carries its name
const EDGE = 10;

export const gapOf = (tile) => (tile < 8 ? 1 : tile < 16 ? 2 : 4);

// The largest tiles with which all fits; `zoom` steps from there.
export function fitted(groups, width, height, zoom) {
  let best = 0;
  for (let index = LARGEST_FITTED; index > 0 && !best; index--)
    if (laidOut(groups, width, SIZES[index]).height <= height) best = index;
  const index = Math.max(0, Math.min(SIZES.length - 1, best + zoom));
  return { ...laidOut(groups, width, SIZES[index]), zoom: index - best };
}

function laidOut(groups, width, tile) {
  const pitch = tile + gapOf(tile);
  const between = tile < 8 ? 8 : 14;
  const room = Math.max(1, Math.floor((width - 2 * EDGE) / pitch));
  const widest = groups.length < 4 ? Math.floor(room / Math.max(1, groups.length)) : 0;
  const blocks = [];
  let [x, y, row] = [EDGE, EDGE, 0];
  for (const { name, members } of groups) {
    const columns = Math.min(room, Math.max(widest, columnsFor(members.length)), members.length);
    const rows = Math.ceil(members.length / columns);
    const [w, h] = [columns * pitch, rows * pitch + LABEL];
    if (x > EDGE && x + w > width - EDGE) [x, y, row] = [EDGE, y + row + between, 0];
    blocks.push({ name, members, columns, x, y, w, h });
    x += w + between;
    row = Math.max(row, h);
  }
  return { tile, pitch, blocks, height: y + row + EDGE };
}

// Twice as wide as high, and small groups in one row.
const columnsFor = (count) => (count <= 8 ? count : Math.ceil(Math.sqrt(2 * count)));

export function* tiles({ blocks, pitch }) {
  for (const { members, columns, x, y } of blocks)
    for (const [index, at] of members.entries())
      yield { at, x: x + (index % columns) * pitch, y: y + LABEL + Math.floor(index / columns) * pitch };
}

export function hit(layout, px, py) {
  const { blocks, pitch } = layout;
  const block = blocks.find(({ x, y, w, h }) => px >= x && px < x + w && py >= y + LABEL && py < y + h);
  if (!block) return null;
  const column = Math.floor((px - block.x) / pitch);
  const row = Math.floor((py - block.y - LABEL) / pitch);
  return block.members[row * block.columns + column] ?? null;
}

// The tile that an arrow key leads to: the nearest one in that direction.
export function neighbour(layout, name, dx, dy) {
  const list = [...tiles(layout)];
  const index = list.findIndex(({ at }) => at.name === name);
  if (index < 0) return list[0]?.at ?? null;
  if (dx) return list[Math.max(0, Math.min(list.length - 1, index + dx))].at;
  const from = list[index];
  let [best, least] = [from, Infinity];
  for (const tile of list) {
    const ahead = (tile.y - from.y) * dy;
    const distance = ahead + 3 * Math.abs(tile.x - from.x);
    if (ahead > 0 && distance < least) [best, least] = [tile, distance];
  }
  return best.at;
}
