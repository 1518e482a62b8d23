// Serves HTTP/2 alone, as gRPC does: echoes what is posted, status in a trailer.
//
//     node http2_server.mjs ADDRESS CERTIFICATE KEY
import { readFileSync } from "node:fs";
import { createSecureServer } from "node:http2";

const [address, certificate, key] = process.argv.slice(2);
const server = createSecureServer({ cert: readFileSync(certificate), key: readFileSync(key) });
server.on("stream", (stream) => {
  stream.respond({ ":status": 200 }, { waitForTrailers: true });
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
  stream.write("echo ");
  stream.pipe(stream);
});
server.listen(443, address, () => console.log("ready"));
