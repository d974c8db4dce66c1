"""What the reference shows, and in which order: every public name once, with its formula and where to read on.

A name that a public module exports and that is missing here fails the build and tests/test_docs_site.py (`gate.py`).
"""

from typing import NamedTuple

# The modules that docs/project/versioning.md calls public; their `__all__` is what the reference must hold.
MODULES = (
    "hierax",
    "hierax.problems",
    "hierax.estimators",
    "hierax.extend",
    "hierax_lab.datasets",
    "hierax_lab.problems",
)


class Group(NamedTuple):
    """A part of the reference: its title, a sentence, and its names in order."""

    title: str
    about: str
    names: tuple[str, ...]


def _of(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


GROUPS = (
    Group(
        "State a problem",
        "The two levels, the sets X and Y, and where samples come from.",
        _of("hierax", "Problem Box NonNegative Ball Simplex Free Finite Sampler Stream Multipliers"),
    ),
    Group(
        "Solve it",
        "One call; what comes back says how it ended.",
        _of("hierax", "solve solve_many Auto Solution Solutions Status Info cache"),
    ),
    Group(
        "Judge an answer",
        "Is the point right? Is the problem? What do the theorems ask for?",
        _of(
            "hierax",
            "certify Certificate check theory Theory psi PsiAt envelope EnvelopeAt dual gradient_errors GradientErrors",
        ),
    ),
    Group(
        "Methods",
        "The published methods, each under the name of its paper.",
        _of("hierax", "SALVF SALVF_VR BLOCC LVHBA BiCGAFFA GAM Barrier SIGD IGAL Moreau FirstOrderPenalty"),
    ),
    Group(
        "Parts of methods",
        "Step sizes, batch sizes and directions that a method is made of.",
        _of("hierax", "Steps Decay Staircase Plain Storm"),
    ),
    Group(
        "Lower solvers",
        "They solve the lower level at a given x.",
        _of("hierax", "SALM Exact Conic MaxMin ALM"),
    ),
    Group(
        "Bridges",
        "Problems stated in the conventions of other libraries.",
        _of("hierax", "minimize_bilevel from_cvxpy from_torch"),
    ),
    Group(
        "Errors and warnings",
        "What hierax raises, and what it warns with.",
        _of("hierax", "InputError RunFailed MissingExtra HieraxWarning"),
    ),
    Group(
        "hierax.problems",
        "A bilevel problem whose answers are known, for first steps.",
        _of("hierax.problems", "Example Known toy toy_inner_solution"),
    ),
    Group(
        "hierax.estimators",
        "Classifiers for scikit-learn that tune themselves as bilevel problems.",
        _of("hierax.estimators", "BilevelSVC HyperCleaner NormBoundedMLPClassifier"),
    ),
    Group(
        "hierax.extend",
        "For authors of methods, lower solvers and sets.",
        (
            *_of("hierax", "AbstractMethod AbstractLowerSolver AbstractSet"),
            *_of(
                "hierax.extend",
                "Begun Batches Tickets Metrics Residual Costs RunCosts Advice Iterate StepTaken LowerSolution Rows "
                "Faces SOLVED INACCURATE INFEASIBLE UNBOUNDED project all_constraints violation gradient_mapping "
                "init_rule apply_rule step_metrics batch_costs no_multipliers as_arrays fetch whole METHODS "
                "AbstractDirection StepInfo first_state psi_stationarity interruptible Interrupt die_when_terminated "
                "forget_programs lazy",
            ),
        ),
    ),
    Group(
        "hierax_lab.datasets",
        "Data sets by name, with their origin and their terms; of the package hierax-lab.",
        _of(
            "hierax_lab.datasets",
            "load Dataset splits scale quadratic_features availability SOURCES Source MissingData",
        ),
    ),
    Group(
        "hierax_lab.problems",
        "Problems for tests and comparisons, of the package hierax-lab; others are in `problems.bolib`.",
        _of(
            "hierax_lab.problems",
            "synthetic ellipsoid_qp random_qp kinked gaffa_toy lvhba_toy svm svm_reference svm_hypergradient "
            "SVMSolution weight_decay smd chain membrane flows",
        ),
    ),
)

# Values carry no docstring of their own: what they are, and an example, stand here.
VALUES = {
    "hierax.extend.SOLVED": "0, a `status` of `LowerSolution`: the KKT residual is below the solver's tolerance.",
    "hierax.extend.INACCURATE": "1, a `status` of `LowerSolution`: not solved to the tolerance.",
    "hierax.extend.INFEASIBLE": "2, a `status` of `LowerSolution`: no y in Y satisfies the constraints at this x.",
    "hierax.extend.UNBOUNDED": "3, a `status` of `LowerSolution`: the lower objective falls without limit at this x.",
    "hierax.extend.METHODS": "The published methods, by the names that `hierax solve --method` takes.",
    "hierax_lab.datasets.SOURCES": "The table of the data sets: a dictionary from name to `Source`.",
}

# Members that a user calls or must write. The others serve the library and may change.
MEMBERS = {
    "hierax.Problem": "rows described",
    "hierax.Finite": "from_files",
    "hierax.Solution": "certificate value report plot",
    "hierax.Solutions": "values report plot to_frame",
    "hierax.Status": "name ok failed",
    "hierax.Certificate": "verdict ok reasons better gain",
    "hierax.Theory": "method",
    "hierax.AbstractMethod": "begin step multipliers costs check batches finish",
    "hierax.AbstractLowerSolver": "solve doubts",
    "hierax.AbstractSet": "project faces bounds contains",
}

_AUGMENTED = r"""y &\leftarrow \operatorname*{arg\,min}_{y \in Y} \; G(x, y)
  + \tfrac{1}{2\rho} \textstyle\sum_i \bigl([\mu_i + \rho\, r_i(x, y)]_+^2 - \mu_i^2\bigr) \\
\mu &\leftarrow [\mu + \rho\, r(x, y)]_+"""

_LOWER = r"y^*(x) = \operatorname*{arg\,min}_{y \in Y} \{\, G(x, y) : h(x, y) \le 0,\; e(x, y) = 0 \,\}"

# The first formula of a docstring, typeset: the page shows it in the place of the plain one. Their sources: References.
FORMULAS = {
    "hierax.Problem": r"""\begin{aligned}
\min_{x \in X} \;& F(x, y^*(x)) = \mathbb{E}\, f(x, y^*(x); \zeta) \quad\text{subject to}\quad
  H_{\text{up}}(x, y^*(x)) \le 0 \\
& y^*(x) = \operatorname*{arg\,min}_{y \in Y}
\{\, G(x, y) = \mathbb{E}\, g(x, y; \xi) : h(x, y) \le 0,\; e(x, y) = 0 \,\}
\end{aligned}""",
    "hierax.Box": r"""X = \{\, x : \text{lower}_i \le x_i \le \text{upper}_i \,\}, \qquad
\operatorname{Proj}_X(x) = \min(\max(x, \text{lower}), \text{upper})""",
    "hierax.NonNegative": r"X = \{\, x : x_i \ge 0 \,\}, \qquad \operatorname{Proj}_X(x) = \max(x, 0)",
    "hierax.Ball": r"""X = \{\, x : \|x\|_2 \le \text{radius} \,\}, \qquad
\operatorname{Proj}_X(x) = x \, \min\bigl(1, \text{radius} / \|x\|_2\bigr)""",
    "hierax.Simplex": r"""X = \{\, x : x_i \ge 0,\; \textstyle\sum_i x_i = \text{scale} \,\}, \qquad
\operatorname{Proj}_X(x) = [x - t]_+ \;\text{ with } t \text{ such that the entries sum to scale}""",
    "hierax.Free": r"X = \mathbb{R}^n, \qquad \operatorname{Proj}_X(x) = x",
    "hierax.AbstractSet": r"\operatorname{Proj}(u) = \operatorname*{arg\,min}_{v \in \text{set}} \|v - u\|_2",
    "hierax.Finite": r"\mathbb{E}\, f(x, y; \zeta) = \frac1N \sum_{i=1}^N f(x, y; \text{row}_i)",
    "hierax.Decay": r"\alpha_k = \text{scale} \cdot \min\bigl(1,\; a\,(k+1)^{-\text{power}}\bigr), \; k = 0, 1, \dots",
    "hierax.SALVF": r"""\begin{aligned}
L_{\gamma_1}(x, w, \lambda) &= G(x, w) + \tfrac{1}{2\gamma_1} \textstyle\sum_i
  \bigl([\gamma_1 \lambda_i + H_i(x, w)]_+^2 - \gamma_1^2 \lambda_i^2\bigr) \\
E(x, z) &= \min_{w \in Y} \max_{\lambda \ge 0} \; L_{\gamma_1}(x, w, \lambda)
  - \tfrac{\gamma_2}{2} \|\lambda - z\|^2 \\
\Psi(x, y, z) &= F(x, y) + c_1 \bigl(G(x, y) - E(x, z)\bigr)
  + \tfrac{1}{2 c_2} \textstyle\sum_i \bigl([\nu_i + c_2 H_i(x, y)]_+^2 - \nu_i^2\bigr)
\end{aligned}""",
    "hierax.SALVF_VR": r"""d_k = \nabla \Psi(u_k) + (1 - \beta_k)\,\bigl(d_{k-1} - \nabla \Psi(u_{k-1})\bigr),
\qquad u = (x, y)""",
    "hierax.Storm": r"""\begin{aligned}
d_k &= \nabla \Psi(u_k) + (1 - \beta_k)\,\bigl(d_{k-1} - \nabla \Psi(u_{k-1})\bigr), \qquad \beta_0 = 1 \\
\beta_{k+1} &= \min(1,\; \kappa \cdot \text{unit} \cdot c_1 \alpha_k)
\end{aligned}""",
    "hierax.Plain": r"d_k = \nabla \Psi(u_k)",
    "hierax.BLOCC": r"""F_c(x) = \max_{\mu \ge 0} \min_{y \in Y} \;
F(x, y) + c\,(G(x, y) - v(x)) + \langle \mu, H(x, y) \rangle""",
    "hierax.LVHBA": r"""v_g(x, y, z) = \min_{\theta \in Y} \max_{\lambda \in [0, r]^p} \;
G(x, \theta) + \lambda^\top H(x, \theta) + \tfrac{1}{2 g_1} \|\theta - y\|^2 - \tfrac{1}{2 g_2} \|\lambda - z\|^2""",
    "hierax.BiCGAFFA": r"""\begin{aligned}
\text{gap}(x, y, z) ={}& \max_{\lambda \ge 0} \bigl[ G(x, y) + \lambda^\top H(x, y)
  - \tfrac{1}{2 g_2} \|\lambda - z\|^2 \bigr] \\
&- \min_{\theta \in Y} \bigl[ G(x, \theta) + z^\top H(x, \theta) + \tfrac{1}{2 g_1} \|\theta - y\|^2 \bigr]
\end{aligned}""",
    "hierax.GAM": r"""\begin{bmatrix} L_{yy} & J_A^\top \\ J_A & 0 \end{bmatrix}
\begin{bmatrix} \mathrm{d}y^*/\mathrm{d}x \\ \mathrm{d}\lambda/\mathrm{d}x \end{bmatrix}
= - \begin{bmatrix} L_{yx} \\ J_{x,A} \end{bmatrix},
\qquad d = \nabla_x F + \Bigl(\frac{\mathrm{d}y^*}{\mathrm{d}x}\Bigr)^{\!\top} \nabla_y F,
\quad x \leftarrow \operatorname{Proj}_X(x - \eta d)""",
    "hierax.Barrier": r"""\begin{aligned}
B_t(x, y) &= G(x, y) - t \textstyle\sum_i \log(-H_i(x, y)), \qquad y_t(x) = \operatorname*{arg\,min}_y B_t(x, y) \\
d &= \nabla_x F - B_{xy} B_{yy}^{-1} \nabla_y F \;\text{ at } y_t(x),
  \qquad x \leftarrow \operatorname{Proj}_X(x - \eta d)
\end{aligned}""",
    "hierax.SIGD": r"""\begin{aligned}
y_q(x) &= \operatorname*{arg\,min}_y \{\, G(x, y) + q^\top y : A y \le b + B x \,\},
  \qquad q \text{ uniform in the ball of radius } \sigma \\
d &= \nabla_x F + \Bigl(\frac{\mathrm{d}y_q}{\mathrm{d}x}\Bigr)^{\!\top} \nabla_y F,
  \qquad x \leftarrow \operatorname{Proj}_X(x - \eta d)
\end{aligned}""",
    "hierax.IGAL": rf"""\begin{{aligned}}
{_AUGMENTED} \\
d &= \nabla_x F + \Bigl(\frac{{\mathrm{{d}}y^*}}{{\mathrm{{d}}x}}\Bigr)^{{\!\top}} \nabla_y F,
  \qquad x \leftarrow \operatorname{{Proj}}_X(x - \eta d)
\end{{aligned}}""",
    "hierax.ALM": rf"""\begin{{aligned}}
{_AUGMENTED}
\end{{aligned}}""",
    "hierax.Moreau": r"""\begin{aligned}
v_g(x, y) &= \min \{\, G(x, \theta) + \tfrac{1}{2g} \|\theta - y\|^2 : \theta \in Y,\; H(x, \theta) \le 0 \,\} \\
\varphi_c(x) &= \min \{\, F(x, y) + c\,(G(x, y) - v_g(x, y)) : y \in Y,\; H(x, y) \le 0 \,\}
\end{aligned}""",
    "hierax.FirstOrderPenalty": r"""\begin{aligned}
&\min_{x \in X,\, y \in Y} \max_{z \in Y} \; F(x, y) + r_k\,(G_m(x, y) - G_m(x, z)), \\
&G_m = G + m_k\,\bigl(\|[H]_+\|^2 + \|e\|^2\bigr), \qquad r_k = r/\varepsilon_k, \quad m_k = m/\varepsilon_k^2
\end{aligned}""",
    "hierax.SALM": r"""\begin{aligned}
\ell(w, \lambda) &= L_{\gamma_1}(x, w, \lambda) - \tfrac{\gamma_2}{2} \|\lambda - z\|^2 \\
\mu &= [\gamma_1 \lambda + H(x, w)]_+ / \gamma_1 \\
w &\leftarrow \operatorname{Proj}_Y\bigl(w - \eta_j (\nabla_y g(x, w; \xi_j) + J_y H(x, w)^\top \mu)\bigr) \\
\lambda &\leftarrow \bigl[\lambda + \rho_j (\max(-\gamma_1 \lambda, H(x, w)) - \gamma_2 (\lambda - z))\bigr]_+
\end{aligned}""",
    "hierax.Exact": _LOWER,
    "hierax.MaxMin": r"\max_{\mu \ge 0} \min_{y \in Y} \; G(x, y) + \langle \mu, H(x, y) \rangle",
    "hierax.AbstractLowerSolver": _LOWER,
    "hierax.certify": r"""\begin{aligned}
\text{lower gap} &= G(x, y) - v(x), \qquad
  v(x) = \min_{w \in Y} \{\, G(x, w) : h(x, w) \le 0,\; e(x, w) = 0 \,\} \\
\text{distance} &= \|y - y^*(x)\|, \qquad v(x) = G(x, y^*(x)) \\
\text{hyper-gradient} &= \nabla \varphi = \nabla_x F
  + \Bigl(\frac{\mathrm{d}y^*}{\mathrm{d}x}\Bigr)^{\!\top} \nabla_y F, \qquad \varphi(x) = F(x, y^*(x))
\end{aligned}""",
    "hierax.extend.gradient_mapping": r"""r(u) = \bigl(u
- \operatorname{Proj}(u - \text{step} \cdot \text{gradient})\bigr) / \text{step}""",
    "hierax.extend.violation": r"[h]_+ = \max(h, 0), \qquad |e|, \qquad [H_{\text{up}}]_+",
    "hierax.problems.toy": r"""\min_{x \in [0, 3]}
\frac{e^{2 - y^*(x)}}{2 + \cos 6x} + \tfrac12 \log\bigl((4x - 2)^2 + 1\bigr)
\quad\text{where}\quad y^*(x) = \operatorname*{arg\,min}_{y \in [0, 3]} \{\, (y - 2x)^2 : y - x \le 0 \,\}""",
    "hierax_lab.datasets.scale": r"x_{ij} \mapsto -1 + 2\,\frac{x_{ij} - \min_j}{\max_j - \min_j}",
}

# Where a name is explained further: pages of docs/. Those that its docstring refers to are not shown twice.
READ_ON: dict[str, tuple[str, ...]] = {
    "hierax.Problem": ("guides/using.md",),
    "hierax.Finite": ("guides/using.md", "guides/data.md"),
    "hierax.Sampler": ("guides/using.md",),
    "hierax.Stream": ("guides/using.md", "guides/data.md"),
    "hierax.solve": ("guides/using.md", "methods/auto.md", "start/when-it-says-no.md"),
    "hierax.solve_many": ("guides/using.md",),
    "hierax.Auto": ("methods/auto.md",),
    "hierax.Solution": ("guides/using.md", "guides/reports.md"),
    "hierax.Solutions": ("guides/using.md",),
    "hierax.Status": ("start/when-it-says-no.md",),
    "hierax.Info": ("guides/using.md",),
    "hierax.cache": ("guides/using.md",),
    "hierax.certify": ("guides/certificate.md",),
    "hierax.Certificate": ("guides/certificate.md",),
    "hierax.check": ("guides/certificate.md",),
    "hierax.theory": ("pictures/constants.md",),
    "hierax.Theory": ("pictures/constants.md",),
    "hierax.SALVF": ("methods/salvf.md", "methods/corrections.md", "methods/as-printed.md"),
    "hierax.SALVF_VR": ("methods/salvf.md", "methods/corrections.md"),
    "hierax.Storm": ("methods/salvf.md", "methods/corrections.md"),
    "hierax.Plain": ("methods/salvf.md",),
    "hierax.Steps": ("guides/using.md", "methods/salvf.md"),
    "hierax.Decay": ("guides/using.md", "methods/salvf.md"),
    "hierax.Staircase": ("methods/as-printed.md",),
    "hierax.BLOCC": ("methods/blocc.md",),
    "hierax.LVHBA": ("methods/lv-hba.md",),
    "hierax.BiCGAFFA": ("methods/bic-gaffa.md",),
    "hierax.GAM": ("methods/gam.md",),
    "hierax.Barrier": ("methods/barrier.md",),
    "hierax.SIGD": ("methods/sigd.md",),
    "hierax.IGAL": ("methods/ig-al.md",),
    "hierax.Moreau": ("methods/moreau.md",),
    "hierax.FirstOrderPenalty": ("methods/first-order-penalty.md",),
    "hierax.SALM": ("methods/lower-solvers.md", "methods/salvf.md"),
    "hierax.Exact": ("methods/lower-solvers.md", "methods/auto.md"),
    "hierax.Conic": ("methods/lower-solvers.md",),
    "hierax.MaxMin": ("methods/lower-solvers.md", "methods/blocc.md"),
    "hierax.ALM": ("methods/lower-solvers.md", "methods/ig-al.md"),
    "hierax.minimize_bilevel": ("guides/bridges.md",),
    "hierax.from_cvxpy": ("guides/bridges.md",),
    "hierax.from_torch": ("guides/bridges.md",),
    "hierax.RunFailed": ("start/when-it-says-no.md",),
    "hierax.AbstractMethod": ("guides/own-method.md", "guides/own-loop.md"),
    "hierax.AbstractLowerSolver": ("methods/lower-solvers.md",),
    "hierax.problems.toy": ("benchmarks/paper-experiments.md",),
    "hierax_lab.problems.svm": ("benchmarks/paper-experiments.md",),
    "hierax_lab.problems.weight_decay": ("benchmarks/paper-experiments.md",),
    "hierax_lab.problems.smd": ("benchmarks/leaderboard.md",),
    **dict.fromkeys(_of("hierax_lab.problems", "chain membrane flows"), ("benchmarks/cost.md",)),
    "hierax.estimators.BilevelSVC": ("guides/estimators.md",),
    "hierax.estimators.HyperCleaner": ("guides/estimators.md",),
    "hierax.estimators.NormBoundedMLPClassifier": ("guides/estimators.md",),
    **dict.fromkeys(
        _of("hierax_lab.datasets", "load Dataset SOURCES Source availability MissingData"), ("guides/datasets.md",)
    ),
    **dict.fromkeys(
        _of(
            "hierax.extend",
            "Begun Batches Tickets Metrics Residual Costs RunCosts Advice Iterate StepTaken init_rule apply_rule "
            "step_metrics batch_costs no_multipliers as_arrays fetch",
        ),
        ("guides/own-method.md",),
    ),
    **dict.fromkeys(
        _of("hierax.extend", "LowerSolution SOLVED INACCURATE INFEASIBLE UNBOUNDED"), ("methods/lower-solvers.md",)
    ),
}

# Names that compute nothing, by kind: why they need neither a formula nor a reference.
NOTHING_COMPUTED = {
    "an error or a warning: it says in words what happened and what to do": (
        *_of("hierax", "InputError RunFailed MissingExtra HieraxWarning"),
        "hierax_lab.datasets.MissingData",
    ),
    "a record: what its entries are computed by stands with the function that fills them in": (
        *_of("hierax", "Solution Solutions Status Info Theory"),
        *_of("hierax.problems", "Example Known"),
        "hierax_lab.problems.SVMSolution",
        *_of("hierax_lab.datasets", "Dataset Source"),
        *_of("hierax.extend", "Begun Batches Tickets Metrics Costs RunCosts Advice Iterate StepTaken Rows"),
    ),
    "files and rows of data sets: their origins are in docs/guides/datasets.md and in the table SOURCES": _of(
        "hierax_lab.datasets", "load splits availability"
    ),
    "bookkeeping between a method and the loop, or of compiled programs; the formulas are the method's": (
        *_of("hierax", "AbstractMethod cache"),
        *_of("hierax.extend", "init_rule batch_costs as_arrays fetch forget_programs"),
    ),
    "signals and imports: they steer the process, and compute nothing": _of(
        "hierax.extend", "interruptible Interrupt die_when_terminated lazy"
    ),
}

# What a name is excused from, and why. The gate complains about a reason that is no longer needed.
EXCUSED: dict[tuple[str, str], str] = {
    **{
        (name, kind): reason
        for reason, names in NOTHING_COMPUTED.items()
        for name in names
        for kind in ("formula", "reference")
    },
    ("hierax.cache", "example"): (
        "it changes where JAX keeps compiled programs for the rest of the process, which an example must not do to the "
        "process of the tests; tests/test_kept.py calls it in processes of its own"
    ),
    ("hierax.extend.die_when_terminated", "example"): (
        "it changes how the process answers SIGTERM for good, which an example must not do to the process of the tests"
    ),
    ("hierax.from_torch", "example"): (
        "PyTorch is in no extra of hierax, so a docstring example cannot run; its text shows one, and "
        "tests/test_readme.py runs that of docs/guides/bridges.md where PyTorch is installed"
    ),
}
