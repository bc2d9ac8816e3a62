/** Address of the figures of an op or a worker. `kind`: "op" or "worker". */
export const detailsLink = (model, kind, name) => `#/graph/${[model, kind, name].map(encodeURIComponent).join("/")}`;
