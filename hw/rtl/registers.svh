// Constants made from hw/rtl/registers.toml by hw/tools/registers.py.
/* verilator lint_off UNUSEDPARAM */
localparam logic [19:0]
    R_ID = 20'h00000,
    R_VERSION = 20'h00004,
    R_SHAPE = 20'h00008,
    R_MEMORY = 20'h0000c,
    R_STATUS = 20'h00010,
    R_CLEAR = 20'h00014,
    R_OUTCOMES = 20'h00080,
    R_LEASES = 20'h01000,
    R_CHILDREN = 20'h10000,
    R_TEMPLATES = 20'h20000;
/* verilator lint_on UNUSEDPARAM */
