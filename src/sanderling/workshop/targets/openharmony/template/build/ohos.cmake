# The OHOS SDK's toolchain, for projects that know Linux but not OHOS: it has the same system calls, and musl.
# Needs the environment variable OHOS_SDK (the SDK's folder `native`) and -DOHOS_ARCH=arm64-v8a|armeabi-v7a|x86_64.

if(NOT DEFINED ENV{OHOS_SDK})
  message(FATAL_ERROR "set OHOS_SDK to the folder `native` of the OHOS SDK")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES OHOS_ARCH)
set(OHOS_STL c++_static CACHE STRING "so that the device needs no libc++_shared.so")
include($ENV{OHOS_SDK}/build/cmake/ohos.toolchain.cmake)

set(CMAKE_SYSTEM_NAME Linux)
set(UNIX TRUE)
if(OHOS_ARCH STREQUAL "arm64-v8a")
  set(CMAKE_SYSTEM_PROCESSOR aarch64) # NEON is part of it
elseif(OHOS_ARCH STREQUAL "armeabi-v7a")
  set(CMAKE_SYSTEM_PROCESSOR armv7)
  string(APPEND CMAKE_C_FLAGS_INIT " -mfpu=neon -mfloat-abi=softfp")
  string(APPEND CMAKE_CXX_FLAGS_INIT " -mfpu=neon -mfloat-abi=softfp")
else()
  set(CMAKE_SYSTEM_PROCESSOR x86_64)
endif()
