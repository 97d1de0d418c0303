// Written from the public reference of MindSpore Lite Kit; only what the module uses.
export namespace mindSporeLite {
  enum ThreadAffinityMode { NO_AFFINITIES = 0, BIG_CORES_FIRST = 1, LITTLE_CORES_FIRST = 2 }
  enum DataType {
    TYPE_UNKNOWN = 0,
    NUMBER_TYPE_INT8 = 32,
    NUMBER_TYPE_INT16 = 33,
    NUMBER_TYPE_INT32 = 34,
    NUMBER_TYPE_INT64 = 35,
    NUMBER_TYPE_UINT8 = 37,
    NUMBER_TYPE_UINT16 = 38,
    NUMBER_TYPE_UINT32 = 39,
    NUMBER_TYPE_UINT64 = 40,
    NUMBER_TYPE_FLOAT16 = 42,
    NUMBER_TYPE_FLOAT32 = 43,
    NUMBER_TYPE_FLOAT64 = 44
  }
  enum Format { DEFAULT_FORMAT = -1, NCHW = 0, NHWC = 1, NHWC4 = 2, HWKC = 3, HWCK = 4, KCHW = 5 }
  enum NNRTDeviceType { NNRTDEVICE_OTHERS = 0, NNRTDEVICE_CPU = 1, NNRTDEVICE_GPU = 2, NNRTDEVICE_ACCELERATOR = 3 }
  enum PerformanceMode {
    PERFORMANCE_NONE = 0, PERFORMANCE_LOW = 1, PERFORMANCE_MEDIUM = 2, PERFORMANCE_HIGH = 3, PERFORMANCE_EXTREME = 4
  }
  enum Priority { PRIORITY_NONE = 0, PRIORITY_LOW = 1, PRIORITY_MEDIUM = 2, PRIORITY_HIGH = 3 }

  interface MSTensor {
    name: string;
    shape: number[];
    elementNum: number;
    dataSize: number;
    dtype: DataType;
    format: Format;
    getData(): ArrayBuffer;
    setData(inputArray: ArrayBuffer): void;
  }
  interface Model {
    getInputs(): MSTensor[];
    predict(inputs: MSTensor[]): Promise<MSTensor[]>;
    resize(inputs: MSTensor[], dims: Array<Array<number>>): boolean;
  }
  interface CpuDevice {
    threadNum?: number;
    threadAffinityMode?: ThreadAffinityMode;
    threadAffinityCoreList?: number[];
    precisionMode?: string;
  }
  interface NNRTDevice {
    deviceID?: bigint;
    performanceMode?: PerformanceMode;
    priority?: Priority;
  }
  interface Context {
    target?: string[];
    cpu?: CpuDevice;
    nnrt?: NNRTDevice;
  }
  interface NNRTDeviceDescription {
    deviceID(): bigint;
    deviceType(): NNRTDeviceType;
    deviceName(): string;
  }
  function loadModelFromBuffer(model: ArrayBuffer, context?: Context): Promise<Model>;
  function getAllNNRTDeviceDescriptions(): NNRTDeviceDescription[];
}
