-- CliFilterPlugins=lua, beside slurm.conf: jobs that opt in get --no-kill, which a job cannot ask
-- for once it is submitted: else Slurm ends the whole job with its first lost node.
-- Opts in: UNICRON=1 in the environment, a key "unicron" in a JSON --comment, or unicron-run as the
-- batch script. Whatever happens here, the submission goes on.
-- A site with a cli_filter.lua of its own calls unicron_opt_in(options) from there.

local function wants(options)
    if os.getenv("UNICRON") == "1" then return true end
    local comment = options["comment"]
    if type(comment) == "string" and comment:find('"unicron"%s*:') then return true end
    local script = options["argv"] and options["argv"][1]
    return type(script) == "string" and script:match("([^/]*)$") == "unicron-run"
end

function unicron_opt_in(options)
    pcall(function()
        if options["type"] ~= "srun" and wants(options) then options["no-kill"] = "set" end
    end)
end

function slurm_cli_setup_defaults(options, early)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
    unicron_opt_in(options)
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
