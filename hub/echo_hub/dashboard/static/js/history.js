/** Rewards of a run as they become more. Pure: values in, values out. */

const KEPT = 300; // as the hub's overview has them

/**
 * A new overview of the stream with the rewards of the whole one that was known before it.
 *
 * The stream's has the last points only, in `reward.updates` and `reward.heldout`. Null if others
 * lie between them and what is known, or the run is at an earlier version than it was: then the
 * whole overview must be asked for.
 */
export function joined(known, told) {
  const updates = longer(known.reward.updates, told.reward.updates, KEPT);
  const heldout = longer(known.reward.heldout, told.reward.heldout, Infinity);
  if (!updates || !heldout || told.version < known.version) return null;
  return { ...told, reward: { ...told.reward, updates, heldout } };
}

/** Points with those that came after them; null if some are missing between them. */
function longer(known, told, most) {
  if (!told.length) return known.length ? null : known;
  const first = told[0].version;
  const before = known.filter((one) => one.version < first);
  const overlap = known.length > before.length;
  // nothing was there before, or what is told begins where the known ends: all is told
  if (!overlap && known.length) return null;
  if (!known.length && told.length > 1) return null;
  return [...before, ...told].slice(-most);
}
