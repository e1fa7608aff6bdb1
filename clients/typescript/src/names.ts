// Names of enum values as strings, absent values, and numbers of the wire.

import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";

type Values = Record<string, string | number>;

/** The names of an enum of the contracts, without its prefix. */
export type NameIn<E extends Values> = Exclude<keyof E & string, "UNSPECIFIED">;

/** Return the name of the value. A value of a newer contract is returned as its number. */
export function nameOf<E extends Values>(values: E, value: number): NameIn<E> {
  return (values[value] ?? String(value)) as NameIn<E>;
}

/** Return the name of the value, or undefined for the value UNSPECIFIED. */
export function chosenName<E extends Values>(values: E, value: number): NameIn<E> | undefined {
  return value === 0 ? undefined : nameOf(values, value);
}

/** Return the value of the name; 0 without a name. Throws TypeError for a name that is none of them. */
export function valueOf<E extends Values>(values: E, name: NameIn<E> | undefined): number {
  if (name === undefined) return 0;
  const value = values[name];
  if (typeof value === "number" && value !== 0) return value;
  const names = Object.keys(values).filter((one) => Number.isNaN(Number(one)) && one !== "UNSPECIFIED");
  throw new TypeError(`${JSON.stringify(name)} is none of ${names.join(", ")}`);
}

/** Return undefined for an empty text. */
export function present(text: string): string | undefined {
  return text === "" ? undefined : text;
}

export function dateOf(time: Timestamp | undefined): Date | undefined {
  return time && timestampDate(time);
}
