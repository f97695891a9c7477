/* A stand-in for the library by which NCCL learns of GPUs: one device, without NVLink. */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char* nvmlErrorString(int code) { return code ? "not in the stand-in" : "success"; }
int nvmlDeviceGetCount(unsigned* count) { return *count = 1, SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 1, SUCCESS; }
int nvmlDeviceGetHandleByPciBusId(const char* bus, void** device) { return *device = (void*)1, SUCCESS; }
int nvmlDeviceGetHandleByIndex(unsigned index, void** device) { return *device = (void*)1, SUCCESS; }
int nvmlDeviceGetIndex(void* device, unsigned* index) { return *index = 0, SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  return *major = 9, *minor = 0, SUCCESS;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) { return *active = 0, NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void* a, void* b, int kind, int* status) { return *status = 1, SUCCESS; }
int nvmlDeviceGetPciInfo(void* device, void* info) { return NOT_SUPPORTED; }
int nvmlDeviceGetPciInfo_v3(void* device, void* info) { return NOT_SUPPORTED; }
int nvmlDeviceGetFieldValues(void* device, int count, void* values) { return NOT_SUPPORTED; }
int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* value) { return *value = 5, SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* value) { return *value = 16, SUCCESS; }
int nvmlDeviceGetNvLinkRemotePciInfo(void* device, unsigned link, void* info) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkCapability(void* device, unsigned link, int which, unsigned* value) { return NOT_SUPPORTED; }
