// The compiler of ArkTS with the options that the SDK gives it: `.ets` files, declarative pages, and the linter.
'use strict';
const fs = require('fs');
const path = require('path');
const ts = require('ohos-typescript');

const DECLARATIONS = path.join(__dirname, 'declarations');
const COMPONENTS = ['Button', 'Column', 'Divider', 'List', 'ListItem', 'Row', 'Scroll', 'Text'];
const PROPERTY_DECORATORS = ['Link', 'Prop', 'ObjectLink', 'Consume'];

const ets = {
  render: { method: ['build', 'pageTransition'], decorator: ['Builder', 'LocalBuilder'] },
  components: COMPONENTS,
  libs: [],
  extend: {
    decorator: ['Extend', 'AnimatableExtend'],
    components: COMPONENTS.map((name) => ({ name, type: `${name}Attribute`, instance: `${name}Instance` })),
  },
  styles: {
    decorator: 'Styles',
    component: { name: 'Common', type: 'T', instance: 'CommonInstance' },
    property: 'stateStyles',
  },
  concurrent: { decorator: 'Concurrent' },
  customComponent: 'CustomComponent',
  propertyDecorators: PROPERTY_DECORATORS.map((name) => ({ name, needInitialization: false })),
  emitDecorators: [],
  syntaxComponents: { paramsUICallback: ['ForEach', 'LazyForEach'], attrUICallback: [] },
};

const common = {
  ets,
  target: ts.ScriptTarget.ES2021,
  lib: ['lib.es2021.d.ts'],
  types: [],
  strict: true,
  experimentalDecorators: true,
  packageManagerType: 'ohpm',
  etsLoaderPath: path.join(__dirname, 'sdk', 'ets', 'build-tools', 'ets-loader'),
  compatibleSdkVersion: 12,
  compatibleSdkVersionStage: '',
};

/** Options of a check; `lint` applies the rules of ArkTS. */
function checkOptions(lint) {
  return {
    ...common,
    module: ts.ModuleKind.ES2020,
    moduleResolution: ts.ModuleResolutionKind.NodeJs,
    noEmit: true,
    skipLibCheck: true,
    noImplicitReturns: true,
    noUnusedLocals: true,
    importsNotUsedAsValues: ts.ImportsNotUsedAsValues.Remove,
    needDoArkTsLinter: lint,
    isCompatibleVersion: false,
    mixCompile: false,
    etsAnnotationsEnable: false,
    incremental: true,
    tsBuildInfoFile: path.join(__dirname, '.tsbuildinfo'), // asked for by the linter; nothing is written
  };
}

/** JavaScript of one file, as Node's `require` takes it: without what marks functions for the system's own compiler. */
function transpile(text, fileName) {
  const options = { ...common, module: ts.ModuleKind.CommonJS, moduleResolution: ts.ModuleResolutionKind.NodeJs };
  return ts.transpileModule(text, { fileName, compilerOptions: options }).outputText.replace(/^@Concurrent$/gm, '');
}

/** The file that an import means: a stub of ours for what the system has, else a neighbour. */
function resolveImport(name, importer) {
  const place = name.startsWith('.') ? path.resolve(path.dirname(importer), name) : path.join(DECLARATIONS, name);
  for (const extension of ['.ets', '.d.ets', '.d.ts', '.ts']) {
    if (fs.existsSync(place + extension)) {
      return { resolvedFileName: place + extension, extension, isExternalLibraryImport: false };
    }
  }
  return undefined;
}

module.exports = { ts, DECLARATIONS, checkOptions, transpile, resolveImport };
