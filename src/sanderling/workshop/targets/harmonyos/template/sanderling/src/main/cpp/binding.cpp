// `model.h` for ArkTS, see types/libsanderling/Index.d.ts. Loading and running happen on a worker thread; a promise
// tells the end.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <napi/native_api.h>

#include "model.h"

namespace {

using sanderling::Model;
using sanderling::Port;
using Shared = std::shared_ptr<Model>;

// What runs on a worker thread: a load, or a call of a model.
struct Work {
    napi_async_work work = nullptr;
    napi_deferred deferred = nullptr;
    std::vector<uint8_t> bytes;
    std::string device;
    Shared model;
    bool loads = false;
    std::string error;
};

napi_value Undefined(napi_env env)
{
    napi_value value = nullptr;
    napi_get_undefined(env, &value);
    return value;
}

napi_value Text(napi_env env, const std::string &text)
{
    napi_value value = nullptr;
    napi_create_string_utf8(env, text.c_str(), text.size(), &value);
    return value;
}

napi_value Throw(napi_env env, const std::string &message)
{
    napi_throw_error(env, nullptr, message.c_str());
    return nullptr;
}

// The model that a function's object holds; null, with an error thrown, after `close`.
Shared *Held(napi_env env, napi_callback_info info, size_t *count = nullptr, napi_value *arguments = nullptr)
{
    napi_value self = nullptr;
    size_t none = 0;
    void *data = nullptr;
    napi_get_cb_info(env, info, count == nullptr ? &none : count, arguments, &self, nullptr);
    if (napi_unwrap(env, self, &data) != napi_ok || data == nullptr) {
        Throw(env, "this is no model");
        return nullptr;
    }
    Shared *held = static_cast<Shared *>(data);
    if (*held == nullptr) {
        Throw(env, "the model is closed");
        return nullptr;
    }
    return held;
}

napi_value Described(napi_env env, const std::vector<Port> &ports)
{
    napi_value list = nullptr;
    napi_create_array_with_length(env, ports.size(), &list);
    for (size_t index = 0; index < ports.size(); index++) {
        napi_value described = nullptr;
        napi_value shape = nullptr;
        napi_create_object(env, &described);
        napi_create_array_with_length(env, ports[index].shape.size(), &shape);
        for (size_t axis = 0; axis < ports[index].shape.size(); axis++) {
            napi_value size = nullptr;
            napi_create_int32(env, ports[index].shape[axis], &size);
            napi_set_element(env, shape, axis, size);
        }
        napi_set_named_property(env, described, "name", Text(env, ports[index].name));
        napi_set_named_property(env, described, "dtype", Text(env, ports[index].dtype));
        napi_set_named_property(env, described, "shape", shape);
        napi_set_element(env, list, index, described);
    }
    return list;
}

napi_value Inputs(napi_env env, napi_callback_info info)
{
    Shared *held = Held(env, info);
    return held == nullptr ? nullptr : Described(env, (*held)->Inputs());
}

napi_value Outputs(napi_env env, napi_callback_info info)
{
    Shared *held = Held(env, info);
    return held == nullptr ? nullptr : Described(env, (*held)->Outputs());
}

// The shared memory of a tensor; the buffer keeps the model alive.
napi_value Buffer(napi_env env, napi_callback_info info, bool isOutput)
{
    size_t count = 1;
    napi_value argument = nullptr;
    Shared *held = Held(env, info, &count, &argument);
    if (held == nullptr) {
        return nullptr;
    }
    const std::vector<Port> &ports = isOutput ? (*held)->Outputs() : (*held)->Inputs();
    uint32_t index = 0;
    if (count < 1 || napi_get_value_uint32(env, argument, &index) != napi_ok || index >= ports.size()) {
        return Throw(env, "no such tensor: there are " + std::to_string(ports.size()));
    }
    Shared *owner = new Shared(*held);
    auto release = [](napi_env, void *, void *hint) { delete static_cast<Shared *>(hint); };
    napi_value buffer = nullptr;
    const Port &port = ports[index];
    if (napi_create_external_arraybuffer(env, port.data, port.sizeBytes, release, owner, &buffer) != napi_ok) {
        delete owner;
        return Throw(env, "the tensor's memory cannot be shown");
    }
    return buffer;
}

napi_value InputBuffer(napi_env env, napi_callback_info info)
{
    return Buffer(env, info, false);
}

napi_value OutputBuffer(napi_env env, napi_callback_info info)
{
    return Buffer(env, info, true);
}

napi_value Close(napi_env env, napi_callback_info info)
{
    Shared *held = Held(env, info);
    if (held != nullptr) {
        held->reset(); // a call that runs, or a buffer that is held, keeps it until then
    }
    return Undefined(env);
}

napi_value Run(napi_env env, napi_callback_info info);

napi_value Wrapped(napi_env env, const Shared &model)
{
    napi_property_descriptor functions[] = {
        {"inputs", nullptr, Inputs, nullptr, nullptr, nullptr, napi_default, nullptr},
        {"outputs", nullptr, Outputs, nullptr, nullptr, nullptr, napi_default, nullptr},
        {"inputBuffer", nullptr, InputBuffer, nullptr, nullptr, nullptr, napi_default, nullptr},
        {"outputBuffer", nullptr, OutputBuffer, nullptr, nullptr, nullptr, napi_default, nullptr},
        {"run", nullptr, Run, nullptr, nullptr, nullptr, napi_default, nullptr},
        {"close", nullptr, Close, nullptr, nullptr, nullptr, napi_default, nullptr},
    };
    napi_value object = nullptr;
    napi_create_object(env, &object);
    napi_define_properties(env, object, sizeof(functions) / sizeof(functions[0]), functions);
    auto release = [](napi_env, void *data, void *) { delete static_cast<Shared *>(data); };
    napi_wrap(env, object, new Shared(model), release, nullptr, nullptr);
    return object;
}

void Execute(napi_env, void *data)
{
    Work *work = static_cast<Work *>(data);
    try {
        if (work->loads) {
            work->model = std::make_shared<Model>(std::move(work->bytes), work->device);
        } else {
            work->model->Run();
        }
    } catch (const std::exception &error) {
        work->error = error.what();
    }
}

void Complete(napi_env env, napi_status status, void *data)
{
    std::unique_ptr<Work> work(static_cast<Work *>(data));
    if (status == napi_ok && work->error.empty()) {
        napi_resolve_deferred(env, work->deferred, work->loads ? Wrapped(env, work->model) : Undefined(env));
    } else {
        napi_value error = nullptr;
        const std::string message = work->error.empty() ? "it was cancelled" : work->error;
        napi_create_error(env, nullptr, Text(env, message), &error);
        napi_reject_deferred(env, work->deferred, error);
    }
    napi_delete_async_work(env, work->work);
}

napi_value Start(napi_env env, std::unique_ptr<Work> work)
{
    napi_value promise = nullptr;
    Work *held = work.release(); // `Complete` takes it over
    napi_create_promise(env, &held->deferred, &promise);
    napi_create_async_work(env, nullptr, Text(env, "sanderling"), Execute, Complete, held, &held->work);
    napi_queue_async_work(env, held->work);
    return promise;
}

napi_value Run(napi_env env, napi_callback_info info)
{
    Shared *held = Held(env, info);
    if (held == nullptr) {
        return nullptr;
    }
    auto work = std::make_unique<Work>();
    work->model = *held;
    return Start(env, std::move(work));
}

napi_value Load(napi_env env, napi_callback_info info)
{
    size_t count = 2;
    napi_value arguments[2] = {nullptr, nullptr};
    napi_get_cb_info(env, info, &count, arguments, nullptr, nullptr);
    void *data = nullptr;
    size_t sizeBytes = 0;
    size_t length = 0;
    if (count < 2 || napi_get_arraybuffer_info(env, arguments[0], &data, &sizeBytes) != napi_ok ||
        napi_get_value_string_utf8(env, arguments[1], nullptr, 0, &length) != napi_ok) {
        return Throw(env, "load takes the bytes of a model and the name of a device");
    }
    auto work = std::make_unique<Work>();
    work->loads = true;
    work->bytes.assign(static_cast<uint8_t *>(data), static_cast<uint8_t *>(data) + sizeBytes);
    work->device.resize(length + 1);
    napi_get_value_string_utf8(env, arguments[1], &work->device[0], length + 1, &length);
    work->device.resize(length);
    return Start(env, std::move(work));
}

napi_value Init(napi_env env, napi_value exports)
{
    napi_property_descriptor load = {"load", nullptr, Load, nullptr, nullptr, nullptr, napi_default, nullptr};
    napi_define_properties(env, exports, 1, &load);
    return exports;
}

napi_module sanderlingModule = {1, 0, nullptr, Init, "sanderling", nullptr, {nullptr}};

} // namespace

extern "C" __attribute__((constructor)) void RegisterSanderling()
{
    napi_module_register(&sanderlingModule);
}
