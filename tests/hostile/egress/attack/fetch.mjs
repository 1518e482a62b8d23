// Gets each address with Node's own client and writes what came of it, a line each.
for (const url of process.argv.slice(2)) {
  let line;
  try {
    const page = await fetch(url, { signal: AbortSignal.timeout(8000) });
    line = { status: page.status, body: await page.text() };
  } catch (error) {
    line = { error: error.cause?.code ?? error.name };
  }
  console.log(JSON.stringify(line));
}
