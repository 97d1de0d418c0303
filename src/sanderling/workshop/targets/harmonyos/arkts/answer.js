// The end of every script: JSON on standard output, or one line of what went wrong.
'use strict';

/** Run `main` with the script's arguments and print what it returns. */
async function answer(main) {
  try {
    process.stdout.write(`${JSON.stringify(await main(process.argv.slice(2)))}\n`);
  } catch (error) {
    const line = `${error.message}`.split('\n')[0];
    process.stderr.write(error.name === 'SanderlingError' ? `Error: ${line}\n` : `Error: ${line}\n${error.stack}\n`);
    process.exitCode = 1;
  }
}

module.exports = { answer };
