// MindSpore Lite Kit's interface over ONNX Runtime: a model's bytes are those of an ONNX file.
// `control` sets what a device would: accelerators, inputs that take channels last, and what goes wrong.
'use strict';
const ort = require('onnxruntime-node');

const DataType = {
  TYPE_UNKNOWN: 0, NUMBER_TYPE_INT8: 32, NUMBER_TYPE_INT16: 33, NUMBER_TYPE_INT32: 34, NUMBER_TYPE_INT64: 35,
  NUMBER_TYPE_UINT8: 37, NUMBER_TYPE_UINT16: 38, NUMBER_TYPE_UINT32: 39, NUMBER_TYPE_UINT64: 40, NUMBER_TYPE_FLOAT16: 42,
  NUMBER_TYPE_FLOAT32: 43, NUMBER_TYPE_FLOAT64: 44,
};
const KINDS = {
  float32: [DataType.NUMBER_TYPE_FLOAT32, Float32Array], int32: [DataType.NUMBER_TYPE_INT32, Int32Array],
  int64: [DataType.NUMBER_TYPE_INT64, BigInt64Array], uint8: [DataType.NUMBER_TYPE_UINT8, Uint8Array],
  int8: [DataType.NUMBER_TYPE_INT8, Int8Array], float64: [DataType.NUMBER_TYPE_FLOAT64, Float64Array],
};

const control = {
  accelerators: [], channelsLast: [], optimization: 'all', loads: [], calls: [], onLoad: undefined, onPredict: undefined,
};

const moved = (shape) => [shape[0], shape[2], shape[3], shape[1]];
const restored = (shape) => [shape[0], shape[3], shape[1], shape[2]];
const product = (shape) => shape.reduce((all, size) => all * size, 1);

class Tensor {
  constructor(name, type, shape, data) {
    const kind = KINDS[type];
    if (kind === undefined) throw new Error(`no tensors of ${type}`);
    this.name = name;
    this.type = type;
    this.dtype = kind[0];
    this.format = 0;
    this.shape = shape;
    this.elementNum = product(shape);
    this.dataSize = this.elementNum * kind[1].BYTES_PER_ELEMENT;
    this.data = data ?? new ArrayBuffer(this.dataSize);
  }

  getData() {
    return this.data.slice(0);
  }

  setData(data) {
    const bytes = data.byteLength;
    if (bytes !== this.dataSize) throw new Error(`${this.name}: ${bytes} bytes, not ${this.dataSize}`);
    this.data = data.slice(0);
  }
}

/** Channels second again, as the ONNX file has them. */
function planes(values, shape) {
  const [rows, height, width, channels] = shape;
  const points = height * width;
  const made = new values.constructor(values.length);
  for (let row = 0; row < rows; row += 1) {
    for (let point = 0; point < points; point += 1) {
      for (let channel = 0; channel < channels; channel += 1) {
        made[(row * channels + channel) * points + point] = values[(row * points + point) * channels + channel];
      }
    }
  }
  return made;
}

class Model {
  constructor(session, device) {
    this.session = session;
    this.device = device;
    this.inputs = session.inputMetadata.map((known) => {
      const shape = known.shape.map((size) => (typeof size === 'number' ? size : 1));
      return new Tensor(known.name, known.type, control.channelsLast.includes(known.name) ? moved(shape) : shape);
    });
  }

  getInputs() {
    return this.inputs;
  }

  resize(inputs, shapes) {
    if (this.device !== 'cpu') return false; // an accelerator runs the shape that was converted
    this.inputs = inputs.map((tensor, index) => new Tensor(tensor.name, tensor.type, shapes[index]));
    return true;
  }

  async predict(inputs) {
    control.calls.push({ device: this.device, rows: inputs[0].shape[0] });
    const feeds = {};
    for (const tensor of inputs) {
      const values = new KINDS[tensor.type][1](tensor.data);
      const last = control.channelsLast.includes(tensor.name);
      const shape = last ? restored(tensor.shape) : tensor.shape;
      feeds[tensor.name] = new ort.Tensor(tensor.type, last ? planes(values, tensor.shape) : values, shape);
    }
    const results = await this.session.run(feeds);
    const outputs = this.session.outputNames.map((name) => {
      const { type, dims, data } = results[name];
      return new Tensor(name, type, [...dims], data.slice().buffer);
    });
    return control.onPredict ? control.onPredict(this.device, outputs) : outputs;
  }
}

const mindSporeLite = {
  DataType,
  Format: { DEFAULT_FORMAT: -1, NCHW: 0, NHWC: 1 },
  NNRTDeviceType: { NNRTDEVICE_OTHERS: 0, NNRTDEVICE_CPU: 1, NNRTDEVICE_GPU: 2, NNRTDEVICE_ACCELERATOR: 3 },
  getAllNNRTDeviceDescriptions: () => control.accelerators.map(({ id, name, type }) => ({
    deviceID: () => BigInt(id), deviceName: () => name, deviceType: () => type,
  })),
  loadModelFromBuffer: async (data, context) => {
    const id = context.target.includes('nnrt') ? context.nnrt.deviceID : null;
    const device = id === null ? 'cpu' : control.accelerators.find((each) => BigInt(each.id) === id).name;
    control.loads.push(device);
    if (control.onLoad) control.onLoad(device);
    const options = {
      executionProviders: ['cpu'],
      graphOptimizationLevel: control.optimization,
      intraOpNumThreads: 1,
      logSeverityLevel: 3,
    };
    return new Model(await ort.InferenceSession.create(new Uint8Array(data), options), device);
  },
};

module.exports = { mindSporeLite, control };
