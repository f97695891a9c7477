/*
 * The SPANK plug-in of Slurm: `srun --netsum[=PROTOCOL]` runs its tasks as ranks of a netsum job.
 *
 * Tasks get the variables of netsum and of torch.distributed. If a task fails, is killed, or vanishes with its step,
 * the plug-in tells the controller that the step's netsum jobs are over, so that switches get their memory back at
 * once. docs/slurm.md says how to install it, docs/adr/0051-slurm-by-a-spank-plug-in.md why it is a plug-in.
 *
 * Arguments in plugstack.conf:
 *   controller=HOST:PORT[,...]   the fabric's controllers; required
 *   credentials=FOLDER           of the tasks, as NETSUM_CREDENTIALS, if the user has not set it; also used to end jobs
 *                                whose user is not known
 *   stop=PROGRAM                 ends jobs by their name; /usr/bin/netsum-job
 *   fabric-hosts                 nodes have the names of the fabric file's hosts, so workers need not look at addresses
 *
 * Slurm calls the functions slurm_spank_*, in this order: see spank.h.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(netsum, 1);

enum {
    TEXT_MAX = 1024,
    NAME_MAX_BYTES = 64,
    /* Where ranks meet, unless Slurm reserves ports (MpiParams=ports). Linux gives outgoing connections 32768 and up. */
    FIRST_PORT = 20000,
    PORTS = 12000,
};

static const char *const PROTOCOLS[] = {"panama", "atp", "switchml", "auto"};
static const char DEFAULT_STOP[] = "/usr/bin/netsum-job";

static struct {
    bool chosen;
    char protocol[16];
} option;

static struct {
    const char *controller;
    const char *credentials;
    const char *stop;
    bool hosts;
} settings;

static bool task_failed;

static int choose(int value, const char *argument, int remote);

static struct spank_option netsum_option = {
    .name = "netsum",
    .arginfo = "[protocol]",
    .usage = "sum gradients in the network: panama (the default), atp, switchml or auto",
    .has_arg = 2,
    .cb = choose,
};

static int choose(int value, const char *argument, int remote)
{
    (void)value;
    if (argument == NULL || *argument == '\0')
        argument = PROTOCOLS[0];
    for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++) {
        if (strcmp(argument, PROTOCOLS[i]) == 0) {
            option.chosen = true;
            strcpy(option.protocol, PROTOCOLS[i]);
            return ESPANK_SUCCESS;
        }
    }
    if (!remote)
        slurm_spank_log("--netsum=%s: use panama, atp, switchml or auto", argument);
    return ESPANK_BAD_ARG;
}

/* Returns what follows "NAME=" in `argument`, or NULL. */
static const char *value_of(const char *name, const char *argument)
{
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

static void read_settings(int count, char *arguments[])
{
    settings.stop = DEFAULT_STOP;
    for (int i = 0; i < count; i++) {
        const char *value;
        if ((value = value_of("controller", arguments[i])) != NULL)
            settings.controller = value;
        else if ((value = value_of("credentials", arguments[i])) != NULL)
            settings.credentials = value;
        else if ((value = value_of("stop", arguments[i])) != NULL)
            settings.stop = value;
        else if (strcmp(arguments[i], "fabric-hosts") == 0)
            settings.hosts = true;
        else
            slurm_error("netsum: plugstack.conf has an unknown argument: %s", arguments[i]);
    }
}

int slurm_spank_init(spank_t spank, int count, char *arguments[])
{
    read_settings(count, arguments);
    if (spank_context() == S_CTX_SLURMD)
        return ESPANK_SUCCESS;
    return spank_option_register(spank, &netsum_option);
}

int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[])
{
    (void)spank, (void)count, (void)arguments;
    if (option.chosen && settings.controller == NULL) {
        slurm_spank_log("--netsum: plugstack.conf names no controller=HOST:PORT for netsum_spank.so");
        return ESPANK_ERROR;
    }
    return ESPANK_SUCCESS;
}

/* The name of the step's jobs at the controller: the ranks' own library adds "/GROUP". */
static bool step_name(spank_t spank, char name[NAME_MAX_BYTES])
{
    uint32_t job, step;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
        return false;
    snprintf(name, NAME_MAX_BYTES, "slurm-%u.%u", job, step);
    return true;
}

/* Copies the address of the step's first node. */
static bool first_node(uint32_t job, uint32_t step, char address[TEXT_MAX])
{
    slurm_step_id_t id = {.job_id = job, .step_id = step, .step_het_comp = NO_VAL};
    slurm_step_layout_t *layout = slurm_job_step_layout_get(&id);
    if (layout == NULL)
        return false;
    hostlist_t nodes = slurm_hostlist_create(layout->node_list);
    char *name = nodes == NULL ? NULL : slurm_hostlist_shift(nodes);
    slurm_job_step_layout_free(layout);
    node_info_msg_t *found = NULL;
    bool ok = name != NULL && slurm_load_node_single(&found, name, SHOW_ALL) == SLURM_SUCCESS && found->record_count > 0;
    if (ok) {
        const char *own = found->node_array[0].node_addr;
        snprintf(address, TEXT_MAX, "%s", own != NULL && *own != '\0' ? own : name);
    }
    if (found != NULL)
        slurm_free_node_info_msg(found);
    free(name);
    if (nodes != NULL)
        slurm_hostlist_destroy(nodes);
    return ok;
}

/* In srun, once the step has its nodes: where its ranks meet. What the user has set is left alone. */
int slurm_spank_local_user_init(spank_t spank, int count, char *arguments[])
{
    (void)count, (void)arguments;
    uint32_t job, step;
    if (!option.chosen || getenv("MASTER_ADDR") != NULL)
        return ESPANK_SUCCESS;
    char address[TEXT_MAX], port[16];
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || !first_node(job, step, address)) {
        slurm_spank_log("--netsum: the address of the step's first node is not known; set MASTER_ADDR");
        return ESPANK_ERROR;
    }
    setenv("MASTER_ADDR", address, 1);
    snprintf(port, sizeof port, "%u", FIRST_PORT + (job * 61 + step) % PORTS);
    setenv("MASTER_PORT", port, 0);
    return ESPANK_SUCCESS;
}

static void set_number(spank_t spank, const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    spank_setenv(spank, name, text, 0);
}

/* In each task, as its user, before the program starts. */
int slurm_spank_task_init(spank_t spank, int count, char *arguments[])
{
    (void)count, (void)arguments;
    char name[NAME_MAX_BYTES], node[TEXT_MAX];
    uint32_t rank, size, local_size;
    int local_rank;
    if (!option.chosen || spank_context() != S_CTX_REMOTE || !step_name(spank, name))
        return ESPANK_SUCCESS;
    spank_setenv(spank, "NETSUM_CONTROLLER", settings.controller, 0);
    spank_setenv(spank, "NETSUM_PROTOCOL", option.protocol, 0);
    spank_setenv(spank, "NETSUM_JOB", name, 1);
    if (settings.credentials != NULL)
        spank_setenv(spank, "NETSUM_CREDENTIALS", settings.credentials, 0);
    if (settings.hosts && spank_getenv(spank, "SLURMD_NODENAME", node, sizeof node) == ESPANK_SUCCESS)
        spank_setenv(spank, "NETSUM_HOST", node, 0);
    if (spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) == ESPANK_SUCCESS &&
        spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &size) == ESPANK_SUCCESS &&
        spank_get_item(spank, S_TASK_ID, &local_rank) == ESPANK_SUCCESS &&
        spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &local_size) == ESPANK_SUCCESS) {
        set_number(spank, "RANK", rank);
        set_number(spank, "WORLD_SIZE", size);
        set_number(spank, "LOCAL_RANK", (uint32_t)local_rank);
        set_number(spank, "LOCAL_WORLD_SIZE", local_size);
    }
    return ESPANK_SUCCESS;
}

/*
 * Starts the program that ends all jobs whose names begin with `name`, and does not wait for it: it is nobody's child,
 * so that Slurm's own waiting for tasks does not meet it.
 */
static void stop_jobs(const char *name, const char *controller, const char *credentials)
{
    char folder[TEXT_MAX];
    snprintf(folder, sizeof folder, "%s", credentials);
    const char *arguments[] = {settings.stop, "stop",   "--controller", controller, "--name",
                               name,          "--quiet", *folder != '\0' ? "--credentials" : NULL, folder, NULL};
    pid_t child = fork();
    if (child < 0) {
        slurm_error("netsum: cannot start %s: %m", settings.stop);
    } else if (child == 0) {
        setsid();
        pid_t own = fork();
        if (own == 0) {
            sigset_t none;
            sigemptyset(&none);
            sigprocmask(SIG_SETMASK, &none, NULL);
            execv(settings.stop, (char *const *)arguments);
        }
        _exit(own < 0 || own == 0);
    } else {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
}

/* Ends the step's jobs, by the addresses and certificates of its tasks. */
static void stop_step(spank_t spank)
{
    char name[NAME_MAX_BYTES], pattern[NAME_MAX_BYTES + 1], controller[TEXT_MAX], credentials[TEXT_MAX];
    if (!step_name(spank, name))
        return;
    snprintf(pattern, sizeof pattern, "%s/", name);
    if (spank_getenv(spank, "NETSUM_CONTROLLER", controller, sizeof controller) != ESPANK_SUCCESS)
        snprintf(controller, sizeof controller, "%s", settings.controller);
    if (spank_getenv(spank, "NETSUM_CREDENTIALS", credentials, sizeof credentials) != ESPANK_SUCCESS)
        snprintf(credentials, sizeof credentials, "%s", settings.credentials == NULL ? "" : settings.credentials);
    stop_jobs(pattern, controller, credentials);
}

/* In slurmstepd, as each task ends. A rank that has failed takes its job with it, as in every collective library. */
int slurm_spank_task_exit(spank_t spank, int count, char *arguments[])
{
    (void)count, (void)arguments;
    int status;
    if (!option.chosen || task_failed || spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS ||
        status == 0)
        return ESPANK_SUCCESS;
    task_failed = true;
    stop_step(spank);
    return ESPANK_SUCCESS;
}

/* In slurmstepd, when all tasks of the node are over: what a rank asked for just before its end is ended as well. */
int slurm_spank_exit(spank_t spank, int count, char *arguments[])
{
    (void)count, (void)arguments;
    if (task_failed && spank_context() == S_CTX_REMOTE)
        stop_step(spank);
    return ESPANK_SUCCESS;
}

/* On each node of a job, when it is over: for steps whose slurmstepd was killed. */
int slurm_spank_job_epilog(spank_t spank, int count, char *arguments[])
{
    char name[NAME_MAX_BYTES];
    uint32_t job;
    read_settings(count, arguments);
    if (settings.controller == NULL || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
        return ESPANK_SUCCESS;
    snprintf(name, sizeof name, "slurm-%u.", job);
    stop_jobs(name, settings.controller, settings.credentials == NULL ? "" : settings.credentials);
    return ESPANK_SUCCESS;
}
