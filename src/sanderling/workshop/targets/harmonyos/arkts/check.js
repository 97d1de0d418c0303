// usage: node check.js FOLDER MODULE=FILE…   One JSON object: the type checker's and the linter's findings in `.ets`
// files below FOLDER. MODULE=FILE says which file an import of that name means, such as sanderling=sanderling/Index.ets.
'use strict';
const fs = require('fs');
const path = require('path');
const { answer } = require('./answer');
const { ts, DECLARATIONS, checkOptions, resolveImport } = require('./compiler');

const UNREAD = 6133;

/** Whether a finding says that nobody reads a page: the system does. */
function isPage({ code, file, start }) {
  return code === UNREAD && file.text.startsWith('struct', file.text.lastIndexOf('\n', start) + 1);
}

function filesBelow(folder) {
  return fs.readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const place = path.join(folder, entry.name);
    return entry.isDirectory() ? filesBelow(place) : entry.name.endsWith('.ets') ? [place] : [];
  });
}

function checkedHost(options, modules) {
  const host = ts.createIncrementalCompilerHost(options);
  host.resolveModuleNames = (names, importer) => names.map((name) => {
    const file = modules.get(name);
    if (!file) return resolveImport(name, importer);
    return { resolvedFileName: file, extension: file.endsWith('.d.ts') ? '.d.ts' : path.extname(file) };
  });
  const unmarked = { fileNeedCheck: false, checkPayload: undefined, currentFileName: '' };
  host.getJsDocNodeCheckedConfig = () => ({ nodeNeedCheck: false, checkConfig: [] });
  host.getFileCheckedModuleInfo = (file) => ({ ...unmarked, currentFileName: file });
  host.getJsDocNodeConditionCheckedResult = () => ({ valid: true });
  host.isSourceRetentionDeclarationValid = () => true;
  host.isSourceRetentionAnnotationContentValid = () => true;
  return host;
}

function finding(diagnostic, folder, by) {
  const at = diagnostic.file && diagnostic.start !== undefined
    ? diagnostic.file.getLineAndCharacterOfPosition(diagnostic.start) : undefined;
  return {
    by,
    file: diagnostic.file ? path.relative(folder, diagnostic.file.fileName) : '',
    line: at ? at.line + 1 : 0,
    code: diagnostic.code,
    severity: ts.DiagnosticCategory[diagnostic.category].toLowerCase(),
    message: ts.flattenDiagnosticMessageText(diagnostic.messageText, ' '),
  };
}

function main([folder, ...pairs]) {
  const root = path.resolve(folder);
  const named = pairs.map((pair) => pair.split('='));
  const modules = new Map(named.map(([name, file]) => [name, path.resolve(root, file)]));
  const files = filesBelow(root);
  const known = fs.readdirSync(DECLARATIONS).filter((name) => name.startsWith('global'));
  const roots = [...files, ...known.map((name) => path.join(DECLARATIONS, name))];
  const options = checkOptions(true);
  const builder = ts.createIncrementalProgram({ rootNames: roots, options, host: checkedHost(options, modules) });
  const program = builder.getProgram();
  const sources = files.map((file) => program.getSourceFile(file));
  const types = sources
    .flatMap((file) => [...program.getSyntacticDiagnostics(file), ...program.getSemanticDiagnostics(file)])
    .filter((each) => !isPage(each));
  const rules = ts.ArkTSLinter_1_1.runArkTSLinter(builder, undefined, () => {}, 'ArkTS_1_1');
  const own = new Set(files);
  const findings = [
    ...program.getOptionsDiagnostics().map((each) => finding(each, root, 'options')),
    ...types.map((each) => finding(each, root, 'types')),
    ...rules.filter((each) => !each.file || own.has(path.resolve(each.file.fileName)))
      .map((each) => finding(each, root, 'rules')),
  ];
  const { version } = require('ohos-typescript/package.json');
  return { compiler: `ohos-typescript ${version}`, files: files.length, findings };
}

answer(main);
