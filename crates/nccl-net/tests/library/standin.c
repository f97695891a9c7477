/* Loads NCCL's own library on a machine without a GPU, with a stand-in for the CUDA runtime that is linked into it, and
 * makes a communicator: argv is NCCL's library, rank, ranks, a file for the id. NCCL writes its log.
 *
 * The runtime's functions are local symbols of NCCL's library. Once it is loaded, the first bytes of each become a jump
 * to a function of this file, in this process's memory alone: memory of the "device" is the host's, streams and events
 * are nothing, and one device exists. What is not here returns cudaErrorNotSupported and is named on the standard error
 * output, so that the log says how far NCCL came. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, MEMORY = 2, NOT_SUPPORTED = 801 };

/* What stands in. */
static int get_device(int* device) { return *device = 0; }
static int get_count(int* count) { return *count = 1, SUCCESS; }
static int nothing(void) { return SUCCESS; }
static int get_version(int* version) { return *version = 13020, SUCCESS; }
static const char* error_text(int error) { return error == NOT_SUPPORTED ? "not in the stand-in" : "stand-in"; }
static int make_handle(void** handle) { return *handle = malloc(64), SUCCESS; }
static int drop_handle(void* handle) { return free(handle), SUCCESS; }

static int allocate(void** memory, size_t bytes) {
  if (posix_memalign(memory, 4096, bytes ? bytes : 1)) return MEMORY;
  memset(*memory, 0, bytes);
  return SUCCESS;
}
static int release(void* memory) { return free(memory), SUCCESS; }
static int device_pointer(void** device, void* host, unsigned flags) { return *device = host, SUCCESS; }
static int copy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes), SUCCESS; }
static int set(void* at, int byte, size_t bytes) { return memset(at, byte, bytes), SUCCESS; }
static int exchange_mode(int* mode) { return SUCCESS; }
/* No stream is ever captured. */
static int capture(void* stream, int* status) { return *status = 0, SUCCESS; }
static int bus_id(char* text, int room, int device) { return snprintf(text, room, "0000:01:00.0"), SUCCESS; }

static int attribute(int* value, int which, int device) {
  switch (which) {
    case 75: *value = 9; break;       /* compute capability, major */
    case 10: *value = 32; break;      /* threads of a warp */
    case 16: *value = 132; break;     /* multiprocessors */
    case 97: *value = 227 << 10; break; /* shared memory of a block */
    case 1: *value = 1024; break;     /* threads of a block */
    default: *value = 0;
  }
  return SUCCESS;
}

static int properties(void* properties) { return memset(properties, 0, 800), SUCCESS; }
static int function_attributes(void* attributes) { return memset(attributes, 0, 72), SUCCESS; }

static int context(void** context) { return *context = (void*)1, SUCCESS; }
static int driver_device(int* device) { return *device = 0; }
static int driver_attribute(int* value, int which, int device) { return *value = 0, SUCCESS; }
static int driver_error(int error, const char** text) { return *text = error_text(error), SUCCESS; }
static int uuid(unsigned char* bytes, int device) {
  memset(bytes, 0, 16);
  int process = getpid();
  return memcpy(bytes, &process, sizeof process), SUCCESS;
}
static int entry_point(const char* name, void** function, unsigned version, unsigned long long flags, int* found);

static const struct {
  const char* name;
  void* function;
} STAND_INS[] = {
    {"cudaGetDriverEntryPointByVersion", entry_point},
    {"cuCtxGetCurrent", context},
    {"cuCtxSetCurrent", nothing},
    {"cuCtxGetDevice", driver_device},
    {"cuDeviceGet", driver_device},
    {"cuDeviceGetAttribute", driver_attribute},
    {"cuGetErrorString", driver_error},
    {"cuDeviceGetUuid", uuid},
    {"cudaGetDevice", get_device},
    {"cudaGetDeviceCount", get_count},
    {"cudaSetDevice", nothing},
    {"cudaDeviceSynchronize", nothing},
    {"cudaDriverGetVersion", get_version},
    {"cudaRuntimeGetVersion", get_version},
    {"cudaGetErrorString", error_text},
    {"cudaGetLastError", nothing},
    {"cudaPeekAtLastError", nothing},
    {"cudaDeviceGetAttribute", attribute},
    {"cudaDeviceGetPCIBusId", bus_id},
    {"cudaGetDeviceProperties", properties},
    {"cudaGetDeviceProperties_v2", properties},
    {"cudaFree", release},
    {"cudaMalloc", allocate},
    {"cudaHostAlloc", allocate},
    {"cudaMallocHost", allocate},
    {"cudaFreeHost", release},
    {"cudaHostGetDevicePointer", device_pointer},
    {"cudaHostRegister", nothing},
    {"cudaHostUnregister", nothing},
    {"cudaMemcpy", copy},
    {"cudaMemcpyAsync", copy},
    {"cudaMemset", set},
    {"cudaMemsetAsync", set},
    {"cudaThreadExchangeStreamCaptureMode", exchange_mode},
    {"cudaStreamCreateWithFlags", make_handle},
    {"cudaStreamCreate", make_handle},
    {"cudaStreamDestroy", drop_handle},
    {"cudaStreamIsCapturing", capture},
    {"cudaStreamGetCaptureInfo", capture},
    {"cudaStreamGetCaptureInfo_v2", capture},
    {"cudaStreamGetCaptureInfo_v3", capture},
    {"cudaStreamSynchronize", nothing},
    {"cudaStreamWaitEvent", nothing},
    {"cudaEventCreateWithFlags", make_handle},
    {"cudaEventCreate", make_handle},
    {"cudaEventDestroy", drop_handle},
    {"cudaEventRecord", nothing},
    {"cudaEventQuery", nothing},
    {"cudaEventSynchronize", nothing},
    {"cudaMemPoolCreate", make_handle},
    {"cudaMemPoolSetAttribute", nothing},
    {"cudaMemPoolDestroy", drop_handle},
    {"cudaMallocAsync", allocate},
    {"cudaMallocFromPoolAsync", allocate},
    {"cudaFreeAsync", release},
    {"cudaFuncSetAttribute", nothing},
    {"cudaFuncGetAttributes", function_attributes},
};

static void die(const char* why) {
  fprintf(stderr, "stand-in: %s\n", why);
  exit(3);
}

/* Names of all others. */
static const char* others[1024];
static int other_count;

static long other(long at) {
  static char said[1024];
  if (!said[at]) fprintf(stderr, "stand-in: %s is not there\n", others[at]);
  said[at] = 1;
  return NOT_SUPPORTED;
}

/* The pages of code that names what is not there. */
static unsigned char* code;

/* Code that calls other(at). */
static void* make_other(const char* name) {
  int at = other_count++;
  others[at] = strdup(name);
  unsigned char call[] = {0xbf, 0, 0, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
  void* function = (void*)other;
  memcpy(call + 1, &at, 4);
  memcpy(call + 7, &function, 8);
  memcpy(code + 32 * at, call, sizeof call);
  return code + 32 * at;
}

static void* stand_in(const char* name) {
  for (size_t k = 0; k < sizeof STAND_INS / sizeof *STAND_INS; k++)
    if (!strcmp(name, STAND_INS[k].name)) return STAND_INS[k].function;
  if (other_count == 1024) die("CUDA has too many functions");
  return make_other(name);
}

/* The driver's functions. */
static int entry_point(const char* name, void** function, unsigned version, unsigned long long flags, int* found) {
  *function = stand_in(name);
  if (found) *found = 0;
  return SUCCESS;
}

/* Replaces every function of the runtime in the library that is loaded at `base`. */
static void replace(const char* path, uintptr_t base) {
  int file = open(path, O_RDONLY);
  struct stat size;
  if (file < 0 || fstat(file, &size)) die("the library cannot be read");
  unsigned char* elf = mmap(NULL, size.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (elf == MAP_FAILED) die("the library cannot be mapped");
  Elf64_Ehdr* head = (Elf64_Ehdr*)elf;
  Elf64_Shdr* sections = (Elf64_Shdr*)(elf + head->e_shoff);
  code = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int replaced = 0;
  for (int s = 0; s < head->e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    Elf64_Sym* symbols = (Elf64_Sym*)(elf + sections[s].sh_offset);
    const char* names = (const char*)elf + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
      const char* name = names + symbols[i].st_name;
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC || strncmp(name, "cuda", 4)) continue;
      /* Too short for a jump: such a function does not ask the driver for anything. */
      if (symbols[i].st_size < 14) continue;
      void* to = stand_in(name);
      unsigned char* at = (unsigned char*)(base + symbols[i].st_value);
      uintptr_t page = (uintptr_t)at & ~4095ul;
      if (mprotect((void*)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) die("code cannot be written");
      unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
      memcpy(jump + 6, &to, 8);
      memcpy(at, jump, sizeof jump);
      mprotect((void*)page, 8192, PROT_READ | PROT_EXEC);
      replaced++;
    }
  }
  munmap(elf, size.st_size);
  if (replaced < 100) die("the library has no symbols of the runtime");
}

typedef struct {
  char bytes[128];
} Id;

/* `ncclSimInfo_t`. */
typedef struct {
  size_t size;
  unsigned magic, version;
  float time;
} Simulation;

typedef int (*AllReduce)(const void*, void*, size_t, int, int, void*, void*);

int main(int argc, char** argv) {
  if (argc != 5) die("usage: standin LIBRARY RANK RANKS FILE");
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) die(dlerror());
  struct link_map* map;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map)) die("the library has no place");
  replace(argv[1], map->l_addr);
  int rank = atoi(argv[2]), ranks = atoi(argv[3]), version;
  int (*get_nccl_version)(int*) = dlsym(library, "ncclGetVersion");
  int (*get_id)(Id*) = dlsym(library, "ncclGetUniqueId");
  int (*init)(void**, int, Id, int) = dlsym(library, "ncclCommInitRank");
  const char* (*last_error)(void*) = dlsym(library, "ncclGetLastError");
  int (*start)(void) = dlsym(library, "ncclGroupStart");
  int (*simulate)(Simulation*) = dlsym(library, "ncclGroupSimulateEnd");
  AllReduce allreduce = (AllReduce)dlsym(library, "ncclAllReduce");
  int (*destroy)(void*) = dlsym(library, "ncclCommDestroy");
  get_nccl_version(&version);
  Id id;
  char part[4096];
  snprintf(part, sizeof part, "%s.part", argv[4]);
  if (rank == 0) {
    if (get_id(&id)) die(last_error(NULL));
    FILE* file = fopen(part, "wb");
    if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(part, argv[4])) die("no id");
  } else {
    FILE* file;
    while (!(file = fopen(argv[4], "rb"))) usleep(2000);
    if (fread(&id, sizeof id, 1, file) != 1) die("no id");
    fclose(file);
  }
  void* comm = NULL;
  int code = init(&comm, ranks, id, rank);
  printf("NCCL %d: ncclCommInitRank returned %d: %s\n", version, code, code ? last_error(NULL) : "");
  if (code) return 2;
  /* NCCL says in its log which algorithm it would take. */
  void* memory = NULL;
  allocate(&memory, 1 << 26);
  for (size_t bytes = 1 << 10; bytes <= 1 << 26; bytes <<= 8) {
    Simulation simulation = {sizeof simulation, 0x74685283, version, -1};
    start();
    code = allreduce(memory, memory, bytes / 4, 7, 0, comm, NULL);
    int ended = simulate(&simulation);
    printf("allreduce of %zu bytes: %d, %d, %.1f us\n", bytes, code, ended, simulation.time);
  }
  printf("ncclCommDestroy returned %d\n", destroy(comm));
  return 0;
}
