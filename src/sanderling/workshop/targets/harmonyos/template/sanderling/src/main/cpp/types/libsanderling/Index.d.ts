/** Offline models on an NPU, see `model.h`. */
declare namespace native {
  /** An input or output; `dtype` as NumPy calls it. */
  interface Port {
    name: string;
    dtype: string;
    shape: number[];
  }

  /** A loaded model. Its buffers are memory that the device reads and writes: valid until `close`. */
  interface Model {
    inputs(): Port[];
    outputs(): Port[];
    inputBuffer(index: number): ArrayBuffer;
    outputBuffer(index: number): ArrayBuffer;
    run(): Promise<void>;
    close(): void;
  }

  /** Load the bytes of an `.om` or `.omc` on the device of that name. */
  function load(model: ArrayBuffer, device: string): Promise<Model>;
}
export default native;
