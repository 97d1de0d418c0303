// The system's NAPI is Node's.
#pragma once
#include <node_api.h>
