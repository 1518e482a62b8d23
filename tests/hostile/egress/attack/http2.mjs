// Posts messages over one HTTP/2 connection at once; writes each answer and its trailer.
import { connect } from "node:http2";

const [url, count] = process.argv.slice(2);
const session = connect(url);
const ask = (number) =>
  new Promise((resolve, reject) => {
    const stream = session.request({ ":method": "POST", ":path": "/echo" });
    let text = "";
    let status;
    stream.setEncoding("utf8");
    stream.on("data", (piece) => (text += piece));
    stream.on("trailers", (trailers) => (status = trailers["grpc-status"]));
    stream.on("end", () => resolve([text, status]));
    stream.on("error", reject);
    stream.end(`message ${number}`);
  });
const answers = await Promise.all(Array.from({ length: Number(count) }, (_, number) => ask(number)));
for (const answer of answers) console.log(JSON.stringify(answer));
session.close();
