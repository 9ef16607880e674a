// Reads an AsyncAPI document as its own parser does, with what it refers to in deploy/contract: errors and warnings both fail.

const fs = require("fs");
const path = require("path");
const { Parser } = require("@asyncapi/parser");

(async () => {
  const source = path.join(__dirname, "../../deploy/contract/asyncapi.yaml");
  const { document, diagnostics } = await new Parser().parse(fs.readFileSync(process.argv[2], "utf8"), { source });
  // 0 is an error, 1 a warning, the rest is advice.
  const found = diagnostics.filter((one) => one.severity <= 1);
  for (const one of found) console.error(`${one.path.join("/")}: ${one.message} (${one.code})`);
  if (!document || found.length > 0) process.exit(1);
  if (document.operations().all().length < 2) throw new Error("no operations");
})();
